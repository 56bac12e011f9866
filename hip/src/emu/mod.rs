//! HIP on the CPU: unmodified kernel sources, compiled as C++ and run on fibers.
//!
//! [`Compiler`] turns a `.hip` source into a [`Module`]; a [`Device`] holds the buffers
//! that its kernels work on, each among inaccessible pages; [`Module::run`] calls a
//! launcher and reports what the memory checks found. A wave has 64 lanes, blocks run
//! on OS threads, and the order of a block's threads follows from the seed.
//!
//! What the emulator does not model: timing, caches, occupancy, the registers a kernel
//! needs, and progress of one thread while another spins (a spin lock hangs here). On
//! global memory it finds races between blocks, not between threads of one block.
//! Dynamic LDS is declared by `HIP_DYNAMIC_SHARED`, not by `extern __shared__`.
//! Functions whose last bits differ between devices come from the emulator's own
//! header; see [`LaunchOptions::ulps`](crate::LaunchOptions::ulps).

mod compiler;
mod device;
mod ffi;
mod host;
mod module;
mod report;
mod symbols;

pub use compiler::{Compiler, Mode};
pub use device::{Buffer, BufferSpec, Device, Placement, Role};
pub use module::Module;
