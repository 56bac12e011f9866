//! Writers do not lose each other's entries, and a failed write changes nothing.

use std::path::Path;

use super::entry;
use crate::ledger::{Ledger, append, check_writable};

#[test]
fn concurrent_writers_lose_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("l.jsonl");
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let path = &path;
            scope.spawn(move || {
                for i in 0..4 {
                    append(path, [entry(writer * 100 + i)]).expect("appended");
                }
            });
        }
        // A reader meanwhile sees a sound ledger, or none yet.
        let seen = || (0..20).filter(|_| path.exists()).map(|_| Ledger::read(&path));
        scope.spawn(move || seen().for_each(|l| drop(l.expect("sound at any time"))));
    });
    let ledger = Ledger::read(&path).expect("sound");
    let mut seeds: Vec<u64> = ledger.entries().iter().map(|e| e.seed).collect();
    for writer in 0..4 {
        let own: Vec<u64> = seeds.iter().copied().filter(|s| s / 100 == writer).collect();
        assert!(own.is_sorted(), "the order of one writer: {own:?}");
    }
    seeds.sort_unstable();
    let all: Vec<u64> = (0..4).flat_map(|w| (0..4).map(move |i| w * 100 + i)).collect();
    assert_eq!(seeds, all);
    let mut left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("the folder")
        .map(|e| e.expect("an entry").file_name())
        .collect();
    left.sort();
    assert_eq!(left, [".l.jsonl.lock", "l.jsonl"]);
}

#[test]
fn a_write_that_fails_leaves_the_ledger_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("l.jsonl");
    let before = append(&path, [entry(1)]).expect("a new ledger");
    // The temporary file's name is taken by a folder: the write cannot begin.
    std::fs::create_dir(folder.path().join(".l.jsonl.part")).expect("a folder");
    let error = append(&path, [entry(2)]).expect_err("no temporary file").to_string();
    assert!(
        error.starts_with(path.to_str().expect("UTF-8")) && error.contains("written"),
        "{error}"
    );
    assert!(check_writable(&path).is_err());
    assert_eq!(Ledger::read(&path).expect("as it was"), before);
    let nowhere = folder.path().join("no/such/folder/l.jsonl");
    assert!(append(&nowhere, [entry(1)]).is_err() && check_writable(&nowhere).is_err());
}

/// On a full disk nothing is lost. `/dev/full` refuses every write.
#[test]
fn a_full_disk_is_an_error() {
    let full = Path::new("/dev/full");
    if full.exists() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("l.jsonl");
        let before = append(&path, [entry(1)]).expect("a new ledger");
        std::os::unix::fs::symlink(full, folder.path().join(".l.jsonl.part")).expect("a link");
        let error = append(&path, [entry(2)]).expect_err("no space").to_string();
        assert!(error.contains("cannot be written") && error.contains("space"), "{error}");
        assert_eq!(Ledger::read(&path).expect("as it was"), before);
    }
}

#[test]
fn a_link_to_a_ledger_stays_a_link() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, link) = (folder.path().join("l.jsonl"), folder.path().join("latest"));
    append(&path, [entry(1)]).expect("a new ledger");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    append(&link, [entry(2)]).expect("through the link");
    assert_eq!(Ledger::read(&path).expect("sound").entries().len(), 2);
    assert!(link.is_symlink());
}
