//! What a program asks of the machine before it computes: threads on one NUMA node.
//!
//! It changes no result. A library's host decides for itself; programs call [`prepare`] first.

#![cfg_attr(target_os = "linux", expect(unsafe_code, reason = "calls into the C library"))]

use std::ops::RangeInclusive;

/// Makes rayon's threads those of one NUMA node's CPUs, on Linux.
///
/// On a host with several nodes a product's weights and activations would else be read across sockets. The node is
/// the one with most of the CPUs that this process may use; its threads stay there, and so does the memory
/// that they touch first. Nothing is done to threads where the process may use one node only, or where
/// `RAYON_NUM_THREADS` says how many threads there shall be. Call it before rayon is used.
pub fn prepare() {
    #[cfg(target_os = "linux")]
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        linux::use_one_node();
    }
}

/// A list of CPUs as the kernel writes it: `0-3,8,10-11`.
fn list(text: &str) -> Option<Vec<usize>> {
    let range = |part: &str| -> Option<RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    let parts = text.trim().split(',').filter(|part| !part.is_empty());
    let ranges: Vec<RangeInclusive<usize>> = parts.map(range).collect::<Option<_>>()?;
    Some(ranges.into_iter().flatten().collect())
}

/// The CPUs of the node that has most of the allowed ones; `None` where no node lacks any.
fn of_one_node(nodes: &[Vec<usize>], allowed: &[usize]) -> Option<Vec<usize>> {
    let own = |node: &Vec<usize>| -> Vec<usize> {
        allowed.iter().copied().filter(|cpu| node.contains(cpu)).collect()
    };
    let best = nodes.iter().map(own).rev().max_by_key(Vec::len)?;
    (!best.is_empty() && best.len() < allowed.len()).then_some(best)
}

#[cfg(target_os = "linux")]
mod linux {
    use super::{list, of_one_node};

    /// CPUs by node.
    fn nodes() -> Vec<Vec<usize>> {
        let Ok(folder) = std::fs::read_dir("/sys/devices/system/node") else { return Vec::new() };
        let mut found: Vec<(usize, Vec<usize>)> = folder
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
                let text = std::fs::read_to_string(entry.path().join("cpulist")).ok()?;
                Some((number, list(&text)?))
            })
            .collect();
        found.sort();
        found.into_iter().map(|(_, cpus)| cpus).collect()
    }

    /// CPUs that this thread may use.
    fn allowed() -> Vec<usize> {
        // SAFETY: an empty set is all zeros, and the call writes no more than its size.
        let set = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
                return Vec::new();
            }
            set
        };
        // SAFETY: the index is below the size of the set.
        (0..libc::CPU_SETSIZE as usize)
            .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
            .collect()
    }

    /// Keeps this thread on some CPUs. One that cannot be kept runs as before.
    fn stay_on(cpus: &[usize]) {
        // SAFETY: as above; every CPU was in such a set.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            cpus.iter().for_each(|&cpu| libc::CPU_SET(cpu, &mut set));
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }

    pub(super) fn use_one_node() {
        let Some(cpus) = of_one_node(&nodes(), &allowed()) else { return };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(cpus.len());
        // A pool that exists already stays as it is.
        let _ = pool.start_handler(move |_| stay_on(&cpus)).build_global();
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn this_machine_has_nodes_and_cpus_and_a_thread_stays_where_it_is_told() {
            let (nodes, may) = (nodes(), allowed());
            assert!(!may.is_empty());
            // A container may hide the nodes.
            assert!(nodes.is_empty() || may.iter().all(|cpu| nodes.concat().contains(cpu)));
            std::thread::spawn(move || {
                stay_on(&may[may.len() - 1..]);
                assert_eq!(allowed(), may[may.len() - 1..]);
            })
            .join()
            .expect("the thread ends well");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(list("\n"), Some(vec![]));
        assert_eq!(list("0-x"), None);
    }

    #[test]
    fn the_node_with_most_allowed_cpus_is_taken_if_there_are_others() {
        let nodes = [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![]];
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(of_one_node(&nodes, &all), Some(vec![0, 1, 2, 3]));
        assert_eq!(of_one_node(&nodes, &[3, 5, 6]), Some(vec![5, 6]));
        assert_eq!(of_one_node(&nodes, &[5, 6]), None);
        assert_eq!(of_one_node(&nodes[..1], &[0, 1]), None);
        assert_eq!(of_one_node(&[], &all), None);
        // Nodes that say nothing of these CPUs.
        assert_eq!(of_one_node(&nodes, &[9]), None);
    }
}
