//! Every memory check finds the mistake that it is for, and clean kernels stay clean.

mod common;

use std::time::Duration;

use assay_hip::emu::Mode::{self, Checked, Plain};
use assay_hip::emu::{Placement, Role};
use assay_hip::{Cells, LaunchStatus, MemoryFinding};
use common::{Probe, said};

/// The probe's only finding.
#[track_caller]
fn only(probe: &Probe, status: LaunchStatus) -> MemoryFinding {
    let (report, _) = probe.run();
    assert_eq!(report.status, status, "{:#?}", said(&report));
    assert_eq!(report.findings.len(), 1, "{:#?}", said(&report));
    report.findings[0].clone()
}

#[track_caller]
fn sentence(kernel: &'static str, mode: Mode, status: LaunchStatus) -> String {
    only(&Probe::new(kernel, mode), status).to_string()
}

#[track_caller]
fn assert_clean(probe: &Probe) {
    let (report, _) = probe.run();
    assert!(report.is_clean(), "{:#?}", said(&report));
}

#[test]
fn missing_barrier_between_waves() {
    assert_eq!(
        sentence("missing_barrier_cross_wave", Checked, LaunchStatus::Completed),
        "threads of two waves race on tile in LDS: no barrier between lines 5 and 6 \
         (block 0,0,0 thread 0,0,0, the first of 128)"
    );
}

#[test]
fn missing_barrier_within_a_wave() {
    let probe = Probe { output_elements: 64, ..Probe::new("missing_barrier_same_wave", Checked) };
    assert_eq!(
        only(&probe, LaunchStatus::Completed).to_string(),
        "two threads of one wave race on tile in LDS: no barrier between lines 5 and 6 \
         (block 0,0,0 thread 0,0,0, the first of 64)"
    );
}

#[test]
fn missing_second_barrier() {
    let (report, _) = Probe::new("write_after_read", Checked).run();
    let all = said(&report).join("\n");
    assert!(
        all.contains("threads of two waves race on tile in LDS: no barrier between lines 7 and 9"),
        "{all}"
    );
}

#[test]
fn different_barriers() {
    for mode in [Plain, Checked] {
        assert_eq!(
            sentence("divergent_barrier", mode, LaunchStatus::Completed),
            "threads of a block wait at different barriers, lines 5 and 7 \
             (block 0,0,0 thread 0,0,0)"
        );
    }
}

#[test]
fn exit_before_a_barrier() {
    let probe = Probe { n: 100, output_elements: 100, ..Probe::new("early_exit", Plain) };
    assert_eq!(
        only(&probe, LaunchStatus::Completed).to_string(),
        "a thread returned before the barrier at line 6 at which others wait \
         (block 0,0,0 thread 100,0,0)"
    );
    assert_clean(&Probe::new("early_exit", Plain));
}

#[test]
fn overrun_inside_lds() {
    let finding = sentence("lds_overrun", Checked, LaunchStatus::Aborted);
    assert!(finding.starts_with("indexes beyond the bounds of rows at line 8"), "{finding}");
}

#[test]
fn uninitialised_lds() {
    assert_eq!(
        sentence("uninitialised_lds", Checked, LaunchStatus::Completed),
        "reads tile in LDS before it is written at line 7 \
         (block 0,0,0 thread 64,0,0, the first of 64)"
    );
}

#[test]
fn uninitialised_lds_is_poison_in_plain_builds() {
    let (report, out) =
        Probe { role: Role::InOut, ..Probe::new("uninitialised_lds", Plain) }.run_ints();
    assert!(report.is_clean());
    assert!(out[64..].iter().all(|&value| value == -1));
}

#[test]
fn shuffle_from_an_inactive_lane() {
    for mode in [Plain, Checked] {
        let probe = Probe { output_elements: 64, ..Probe::new("inactive_lane", mode) };
        assert_eq!(
            only(&probe, LaunchStatus::Completed).to_string(),
            "__shfl_xor at line 5 reads from a lane that does not take part \
             (block 0,0,0 thread 0,0,0, the first of 32)"
        );
    }
}

#[test]
fn matrix_instruction_without_one_of_the_lanes() {
    for mode in [Plain, Checked] {
        let probe = Probe { output_elements: 64, ..Probe::new("matrix_inactive_lane", mode) };
        assert_eq!(
            only(&probe, LaunchStatus::Completed).to_string(),
            "an MMAC instruction at line 8 reads from a lane that does not take part \
             (block 0,0,0 thread 0,0,0)"
        );
    }
}

#[test]
fn dynamic_lds_overrun() {
    for mode in [Plain, Checked] {
        assert_clean(&Probe::new("dynamic_lds", mode));
        let short = Probe { n: 124, ..Probe::new("dynamic_lds", mode) };
        let finding = only(&short, LaunchStatus::Aborted).to_string();
        assert!(
            finding.starts_with("indexes beyond the bounds of the dynamic array at line 5"),
            "{finding}"
        );
    }
}

#[test]
fn out_of_bounds_write_at_both_ends() {
    for mode in [Plain, Checked] {
        let past = Probe { n: 128, ..Probe::new("store_at", mode) };
        let finding = only(&past, LaunchStatus::Aborted).to_string();
        assert!(
            finding.starts_with("writes right past the end of out (512 bytes) at line 5"),
            "{finding}"
        );
        let mut before = Probe { n: -1, ..Probe::new("store_at", mode) };
        before.options.placement = Placement::Start;
        let finding = only(&before, LaunchStatus::Aborted).to_string();
        assert!(
            finding.starts_with("writes 4 bytes before the start of out (512 bytes) at line 5"),
            "{finding}"
        );
    }
}

/// A wide store that begins inside an output is out of bounds, and modifies no input.
#[test]
fn out_of_bounds_write_across_the_end() {
    let across = Probe { n: 127, ..Probe::new("store_across", Checked) };
    let finding = only(&across, LaunchStatus::Aborted);
    assert_eq!(finding.code(), "memory.out_of_bounds_write");
    let text = finding.to_string();
    let start = "writes from 4 bytes before the end and across it, of out (512 bytes) at line 5";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn out_of_bounds_read_at_both_ends() {
    for mode in [Plain, Checked] {
        let past = Probe { n: 128, ..Probe::new("load_at", mode) };
        assert_eq!(
            only(&past, LaunchStatus::Aborted).to_string(),
            "reads right past the end of in (512 bytes) at line 4 \
             (block 0,0,0 thread 127,0,0)"
        );
        let mut before = Probe { n: -3, ..Probe::new("load_at", mode) };
        before.options.placement = Placement::Start;
        assert_eq!(
            only(&before, LaunchStatus::Aborted).to_string(),
            "reads 12 bytes before the start of in (512 bytes) at line 4 \
             (block 0,0,0 thread 127,0,0)"
        );
        assert_clean(&Probe { n: 127, ..Probe::new("load_at", mode) });
    }
}

#[test]
fn damaged_canary() {
    let finding = only(&Probe { n: -8, ..Probe::new("store_at", Plain) }, LaunchStatus::Completed);
    assert_eq!(
        finding.to_string(),
        "changed 4 bytes next to out, the first 32 bytes before the start"
    );
}

#[test]
fn unwritten_output() {
    for (mode, seen) in [(Plain, ", as 2 different fills show"), (Checked, "")] {
        let probe = Probe { n: 120, ..Probe::new("copy", mode) };
        assert_eq!(
            only(&probe, LaunchStatus::Completed).to_string(),
            format!(
                "leaves 8 of 128 elements of out unwritten, the first at index 120{seen}: 120..=127"
            )
        );
        assert_clean(&Probe::new("copy", mode));
    }
}

#[test]
fn the_runs_of_unwritten_cells_end_with_their_row() {
    let text = |elements: &[usize], shape: &[usize]| Cells::of(elements, shape).to_string();
    assert_eq!(text(&[3], &[]), "3");
    assert_eq!(text(&[3, 4, 5, 9], &[]), "3..=5, 9");
    assert_eq!(text(&[3, 4, 5, 6], &[2, 5]), "[0, 3..=4], [1, 0..=1]");
    assert_eq!(text(&[23], &[2, 3, 4]), "[1, 2, 3]");
    let odd: Vec<usize> = (0..20).map(|i| 2 * i + 1).collect();
    assert_eq!(text(&odd, &[]), "1, 3, 5, 7, 9, 11, 13, 15 and 12 more runs");
}

#[test]
fn overlapping_stores() {
    for threads in [1, 2] {
        let mut probe = Probe::new("overlapping_stores", Checked);
        probe.options.threads = threads;
        assert_eq!(
            only(&probe, LaunchStatus::Completed).to_string(),
            "different blocks write the same 48 bytes of out, the first at byte 128 \
             (blocks 0,0,0 and 1,0,0)"
        );
    }
}

#[test]
fn a_block_that_reads_what_another_stores() {
    for threads in [1, 2] {
        let mut probe = Probe { role: Role::InOut, ..Probe::new("reads_the_neighbour", Checked) };
        probe.options.threads = threads;
        assert_eq!(
            only(&probe, LaunchStatus::Completed).to_string(),
            "a block reads 384 bytes of out that another block of the launch writes, \
             the first at byte 0 (block 0,0,0 writes, block 1,0,0 reads)"
        );
    }
}

#[test]
fn a_read_before_anything_was_stored() {
    for role in [Role::Out, Role::Scratch] {
        let probe = Probe { role, ..Probe::new("reads_before_it_writes", Checked) };
        assert_eq!(
            only(&probe, LaunchStatus::Completed).to_string(),
            "reads out at byte 0, where nothing was written yet at line 3 \
             (block 0,0,0 thread 0,0,0, the first of 128)"
        );
    }
    assert_clean(&Probe { role: Role::InOut, ..Probe::new("reads_before_it_writes", Checked) });
}

/// By whichever block comes first: every such atomic counts.
#[test]
fn an_atomic_on_what_nobody_set() {
    for role in [Role::Out, Role::Scratch] {
        for threads in [1, 2] {
            let mut probe = Probe { role, ..Probe::new("adds_to_unset", Checked) };
            probe.options.threads = threads;
            assert_eq!(
                only(&probe, LaunchStatus::Completed).to_string(),
                "reads out at byte 0, where nothing was written yet at line 5 \
                 (block 0,0,0 thread 0,0,0, the first of 256)"
            );
        }
        assert_clean(&Probe { role, n: 0, ..Probe::new("adds_to_unset", Checked) });
    }
    assert_clean(&Probe { role: Role::InOut, ..Probe::new("adds_to_unset", Checked) });
}

#[test]
fn store_to_an_input() {
    for mode in [Plain, Checked] {
        let finding = sentence("modifies_input", mode, LaunchStatus::Aborted);
        assert!(finding.starts_with("writes to the input in at byte 20 at line 5"), "{finding}");
    }
}

#[test]
fn null_pointer() {
    for mode in [Plain, Checked] {
        let finding = sentence("null_pointer", mode, LaunchStatus::Aborted);
        assert!(finding.contains("which is in no buffer at line 3"), "{finding}");
    }
}

#[test]
fn stack_overflow() {
    let probe = Probe { output_elements: 64, ..Probe::new("stack_overflow", Plain) };
    assert_eq!(only(&probe, LaunchStatus::Aborted).code(), "memory.stack_overflow");
}

#[test]
fn hang() {
    for mode in [Plain, Checked] {
        let mut probe = Probe { output_elements: 64, ..Probe::new("hang", mode) };
        probe.input.fill(0);
        probe.options.deadline = Duration::from_millis(100);
        assert_eq!(only(&probe, LaunchStatus::Hung).to_string(), "did not end within 100ms");
        probe.input.fill(1);
        let (report, _) = probe.run();
        assert_eq!(report.status, LaunchStatus::Completed);
    }
}

#[test]
fn refused_shape() {
    let (report, _) = Probe { n: 0, ..Probe::new("copy", Plain) }.run();
    assert_eq!(report.status, LaunchStatus::Refused(1));
}

#[test]
fn clean_kernels_have_no_findings() {
    for mode in [Plain, Checked] {
        assert_clean(&Probe::new("clean_reduction", mode));
        assert_clean(&Probe { output_elements: 12 * 64, ..Probe::new("shuffles", mode) });
        assert_clean(&Probe { output_elements: 288, ..Probe::new("votes", mode) });
        assert_clean(&Probe { role: Role::InOut, ..Probe::new("atomics", mode) });
    }
}

#[test]
fn findings_depend_on_the_seed_alone() {
    let kernels =
        ["missing_barrier_cross_wave", "write_after_read", "uninitialised_lds", "store_at"];
    for kernel in kernels {
        for seed in [0, 1, 7] {
            let mut probe = Probe::new(kernel, Checked);
            probe.options.seed = seed;
            let (one, _) = probe.run();
            probe.options.threads = 2;
            let (two, _) = probe.run();
            assert_eq!(one, two, "{kernel} with seed {seed}");
            assert!(!one.findings.is_empty());
        }
    }
}
