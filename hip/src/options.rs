//! How a launch is run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::emu::Placement;

/// How a launch is run. All but `fill` concerns the emulator only.
///
/// The same options give the same bits and the same findings, whatever `threads` is.
/// (Float atomics from different blocks are the exception, as on a device.)
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchOptions {
    /// Order in which the threads of a block run; 0 is the natural order.
    pub seed: u64,
    /// OS threads to spread the blocks over, at least 1.
    pub threads: usize,
    /// Moves every inexact result of expf, exp2f, rsqrtf and reciprocals by this many
    /// units in the last place, up or down as the seed decides. A verdict that 1 or 2
    /// change would not hold on a device.
    pub ulps: u32,
    /// Treats f32 subnormals as zero, as devices may.
    pub ftz: bool,
    /// When a launch counts as hanging.
    pub deadline: Duration,
    /// What outputs hold before the launch, repeated. The default is a NaN in bf16, f16
    /// and f32.
    pub fill: Vec<u8>,
    /// Which end of the buffers touches inaccessible memory.
    pub placement: Placement,
}

impl Default for LaunchOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            threads: 1,
            ulps: 0,
            ftz: false,
            deadline: Duration::from_secs(60),
            fill: vec![0xff],
            placement: Placement::End,
        }
    }
}
