//! Where kernels run, and the one way all typed launchers run them.

use std::ffi::c_void;
use std::ptr;

use assay_reference::{Dtype, Tensor};

#[cfg(feature = "hip")]
use crate::device::{HipDevice, HipMemory};
use crate::emu::{self, BufferSpec, Compiler, Mode, Module, Role};
use crate::error::Error;
use crate::finding::LaunchReport;
use crate::options::LaunchOptions;
use crate::vendor::{Library, Place};

/// Where kernels run.
#[derive(Clone)]
pub enum Backend {
    /// A kernel source compiled for the CPU.
    Emulated(Module),
    /// A HIP device, with the kernels that this crate was built with.
    #[cfg(feature = "hip")]
    Device(HipDevice),
    /// A vendor's library, for its subjects only ([`crate::vendor`]).
    Library(Library),
    /// Nothing runs: launchers check their contract and end with [`Error::NotLaunched`].
    Contract,
}

impl Backend {
    /// Compiles `source` for the emulator with the compiler that [`Compiler::find`] finds.
    ///
    /// # Errors
    /// Those of [`Compiler::find`] and [`Compiler::compile`].
    pub fn emulated(source: &str, mode: Mode) -> Result<Self, Error> {
        Ok(Self::Emulated(Compiler::find()?.compile(source, mode)?))
    }

    /// The first HIP device.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is none or the crate was built without feature `hip`:
    /// then what needs it is skipped, not passed.
    pub fn device() -> Result<Self, Error> {
        #[cfg(feature = "hip")]
        return HipDevice::open().map(Self::Device);
        #[cfg(not(feature = "hip"))]
        Err(Error::NoDevice { reason: "built without the feature `hip`".to_owned() })
    }

    /// The address of a launcher, to be cast to its C signature.
    pub(crate) fn launcher(&self, name: &'static str) -> Result<*const c_void, Error> {
        match self {
            Self::Emulated(module) => module.launcher(name),
            #[cfg(feature = "hip")]
            Self::Device(_) => crate::probe::device_launcher(name)
                .map_or_else(|| crate::kernels::device_launcher(name), Ok),
            Self::Library(_) => Err(Error::NoLauncher { launcher: name.to_owned() }),
            Self::Contract => Err(Error::NotLaunched),
        }
    }
}

impl From<Module> for Backend {
    fn from(module: Module) -> Self {
        Self::Emulated(module)
    }
}

/// What a launch gave.
#[derive(Clone, Debug)]
pub struct Launched {
    /// The outputs by name, in the order of the contract. After a launch that did not
    /// complete, elements not written hold the fill pattern.
    pub outputs: Vec<(&'static str, Tensor)>,
    /// How it ended and what was found.
    pub report: LaunchReport,
}

impl Launched {
    /// The first output.
    ///
    /// # Panics
    /// If the kernel has none, which no kernel of this crate does.
    #[must_use]
    pub fn output(&self) -> &Tensor {
        &self.outputs[0].1
    }
}

enum Memory {
    Emulated(Module, emu::Device),
    /// For a library that works on the host's memory.
    Host(emu::Device),
    #[cfg(feature = "hip")]
    Device(HipMemory),
}

#[derive(Clone, Copy)]
pub(crate) enum Handle {
    Emulated(emu::Buffer),
    #[cfg(feature = "hip")]
    Device(usize),
}

struct Output {
    name: &'static str,
    dtype: Dtype,
    shape: Vec<usize>,
    handle: Handle,
}

/// One launch in the making: buffers first, then [`Call::run`].
pub(crate) struct Call<'a> {
    memory: Memory,
    outputs: Vec<Output>,
    options: &'a LaunchOptions,
}

impl<'a> Call<'a> {
    pub(crate) fn new(backend: &Backend, options: &'a LaunchOptions) -> Result<Self, Error> {
        let memory = match backend {
            Backend::Emulated(module) => {
                Memory::Emulated(module.clone(), emu::Device::new(options.placement)?)
            }
            #[cfg(feature = "hip")]
            Backend::Device(device) => Memory::Device(HipMemory::new(device)),
            Backend::Library(library) => match library.place() {
                Place::Host => Memory::Host(emu::Device::new(options.placement)?),
                #[cfg(feature = "hip")]
                Place::Device(device) => Memory::Device(HipMemory::new(device)),
            },
            Backend::Contract => return Err(Error::NotLaunched),
        };
        Ok(Self { memory, outputs: Vec::new(), options })
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<(Handle, *mut u8), Error> {
        match &mut self.memory {
            Memory::Emulated(_, device) | Memory::Host(device) => {
                let buffer = device.alloc(spec)?;
                Ok((Handle::Emulated(buffer), device.pointer(buffer)))
            }
            #[cfg(feature = "hip")]
            Memory::Device(memory) => {
                let index = memory.alloc(spec)?;
                Ok((Handle::Device(index), memory.pointer(index)))
            }
        }
    }

    /// A device copy of `tensor`, as the pointer that a launcher takes.
    pub(crate) fn input<T>(
        &mut self,
        name: &'static str,
        tensor: &Tensor,
    ) -> Result<*const T, Error> {
        Ok(self.upload(name, Role::In, tensor)?.0.cast_const().cast())
    }

    fn upload(
        &mut self,
        name: &'static str,
        role: Role,
        tensor: &Tensor,
    ) -> Result<(*mut u8, Handle), Error> {
        let bytes = tensor.bytes();
        let element = tensor.dtype().size();
        let shape = tensor.shape();
        let spec = BufferSpec { name, role, bytes: bytes.len(), element, shape };
        let (handle, pointer) = self.alloc(spec)?;
        match (&mut self.memory, handle) {
            (Memory::Emulated(_, device) | Memory::Host(device), Handle::Emulated(buffer)) => {
                device.upload(buffer, bytes);
            }
            #[cfg(feature = "hip")]
            (Memory::Device(memory), Handle::Device(index)) => memory.upload(index, bytes)?,
            #[cfg(feature = "hip")]
            _ => unreachable!("a handle comes from its own memory"),
        }
        Ok((pointer, handle))
    }

    /// The same, or null.
    pub(crate) fn optional_input<T>(
        &mut self,
        name: &'static str,
        tensor: Option<&Tensor>,
    ) -> Result<*const T, Error> {
        tensor.map_or(Ok(ptr::null()), |tensor| self.input(name, tensor))
    }

    /// A copy of `tensor` that the kernel reads and writes in place; an output of the call.
    pub(crate) fn in_out<T>(
        &mut self,
        name: &'static str,
        tensor: &Tensor,
    ) -> Result<*mut T, Error> {
        let (pointer, handle) = self.upload(name, Role::InOut, tensor)?;
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        self.outputs.push(Output { name, dtype, shape, handle });
        Ok(pointer.cast())
    }

    /// A buffer that the kernel has to fill.
    pub(crate) fn output<T>(
        &mut self,
        name: &'static str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<*mut T, Error> {
        let element = dtype.size();
        let bytes = element * shape.iter().product::<usize>();
        let (handle, pointer) =
            self.alloc(BufferSpec { name, role: Role::Out, bytes, element, shape })?;
        self.outputs.push(Output { name, dtype, shape: shape.to_vec(), handle });
        Ok(pointer.cast())
    }

    /// A buffer that the kernel writes and reads and that is no output; holds the fill pattern
    /// first, so that what is read before it was written changes from run to run.
    pub(crate) fn workspace<T>(
        &mut self,
        name: &'static str,
        bytes: usize,
    ) -> Result<*mut T, Error> {
        let element = size_of::<T>();
        let spec = BufferSpec { name, role: Role::Scratch, bytes, element, shape: &[] };
        let (handle, pointer) = self.alloc(spec)?;
        let pattern = &self.options.fill;
        match (&mut self.memory, handle) {
            (Memory::Emulated(_, device) | Memory::Host(device), Handle::Emulated(buffer)) => {
                device.fill(buffer, pattern);
            }
            #[cfg(feature = "hip")]
            (Memory::Device(memory), Handle::Device(index)) => {
                let filled: Vec<u8> = pattern.iter().copied().cycle().take(bytes).collect();
                memory.upload(index, &filled)?;
            }
            #[cfg(feature = "hip")]
            _ => unreachable!("a handle comes from its own memory"),
        }
        Ok(pointer.cast())
    }

    /// A buffer that a library may use as it likes; nothing of it is looked at but its surroundings.
    pub(crate) fn scratch<T>(&mut self, name: &'static str, bytes: usize) -> Result<*mut T, Error> {
        let spec = BufferSpec { name, role: Role::Scratch, bytes, element: 1, shape: &[] };
        Ok(self.alloc(spec)?.1.cast())
    }

    /// Runs the launcher and collects what it wrote. `launch` may be called twice.
    pub(crate) fn run(mut self, launch: impl Fn() -> i32) -> Result<Launched, Error> {
        let report = match &mut self.memory {
            Memory::Emulated(module, device) => module.run(device, self.options, launch)?,
            Memory::Host(device) => device.run_host(&self.options.fill, launch),
            #[cfg(feature = "hip")]
            Memory::Device(memory) => memory.run(self.options, launch)?,
        };
        let mut outputs = Vec::new();
        for Output { name, dtype, shape, handle } in self.outputs {
            let bytes = match (&self.memory, handle) {
                (Memory::Emulated(_, device) | Memory::Host(device), Handle::Emulated(buffer)) => {
                    device.download(buffer).to_vec()
                }
                #[cfg(feature = "hip")]
                (Memory::Device(memory), Handle::Device(index)) => memory.download(index)?,
                #[cfg(feature = "hip")]
                _ => unreachable!("a handle comes from its own memory"),
            };
            outputs.push((name, Tensor::from_bytes(dtype, shape, bytes)?));
        }
        Ok(Launched { outputs, report })
    }
}
