//! The emulator's memory under a library that works on the host's own: no kernel module, the same guards.

use super::device::{Allocation, Device, Role};
use crate::cells::Cells;
use crate::finding::{LaunchReport, LaunchStatus, MemoryFinding};

impl Device {
    /// Runs what works on this memory as the host's own, over filled outputs, and looks at canaries,
    /// inputs and outputs.
    pub(crate) fn run_host(&mut self, fill: &[u8], call: impl Fn() -> i32) -> LaunchReport {
        let inputs = self.save(|role| role == Role::In);
        let mut findings = Vec::new();
        let code = self.call_over(fill, &call);
        if code != 0 {
            return LaunchReport { status: LaunchStatus::Refused(code), findings };
        }
        for buffer in self.buffers(|_| true) {
            let Allocation { name, bytes, .. } = &self.allocations[buffer.0];
            if let Some((offset, count)) = self.damaged_canary(buffer) {
                let (buffer, bytes) = (name.clone(), *bytes);
                findings.push(MemoryFinding::CanaryDamaged { buffer, bytes, offset, count });
            }
        }
        for (buffer, before) in &inputs {
            let changed = self.download(*buffer).iter().zip(before).position(|(a, b)| a != b);
            findings.extend(changed.map(|offset| MemoryFinding::InputModified {
                buffer: self.allocations[buffer.0].name.clone(),
                offset: offset as i64,
                line: None,
                site: None,
                times: 1,
            }));
        }
        findings.extend(self.never_written(fill, &call));
        LaunchReport { status: LaunchStatus::Completed, findings }
    }

    fn call_over(&mut self, fill: &[u8], call: &impl Fn() -> i32) -> i32 {
        self.buffers(|role| role == Role::Out).into_iter().for_each(|b| self.fill(b, fill));
        call()
    }

    /// Output elements that hold each of two patterns after a call over it.
    fn never_written(&mut self, fill: &[u8], call: &impl Fn() -> i32) -> Vec<MemoryFinding> {
        let outputs = self.buffers(|role| role == Role::Out);
        let first: Vec<Vec<usize>> = outputs.iter().map(|&b| self.unwritten(b, fill)).collect();
        if first.iter().all(Vec::is_empty) {
            return Vec::new();
        }
        let after = self.save(|role| role == Role::Out);
        let other: Vec<u8> = fill.iter().map(|byte| !byte).collect();
        self.call_over(&other, call);
        let mut findings = Vec::new();
        for (&buffer, first) in outputs.iter().zip(first) {
            let second = self.unwritten(buffer, &other);
            let both: Vec<usize> =
                first.into_iter().filter(|e| second.binary_search(e).is_ok()).collect();
            let Allocation { name, bytes, element, shape, .. } = &self.allocations[buffer.0];
            findings.extend(both.first().map(|&first| MemoryFinding::UnwrittenOutput {
                buffer: name.clone(),
                first,
                count: both.len(),
                elements: bytes / element,
                cells: Cells::of(&both, shape),
                fills: 2,
            }));
        }
        self.restore(&after);
        findings
    }
}
