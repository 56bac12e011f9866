//! Vendor libraries as subjects: rocBLAS and hipBLASLt multiply the bf16 matrices of most services
//! today, not the kernels of this crate.
//!
//! A [`Subject`] stands where a [`Kernel`] does, on the backend that [`open`] gives: the library, loaded
//! at run time, over the memory of a device. Signatures and numbers are written from the public
//! headers:
//! - rocBLAS: <https://github.com/ROCm/rocBLAS/tree/develop/library/include>
//! - hipBLASLt: <https://github.com/ROCm/hipBLASLt/tree/develop/library/include>
//! - hipblas-common: <https://github.com/ROCm/hipBLAS-common/tree/develop/library/include>

mod gemm;
mod hipblaslt;
mod object;
mod rocblas;

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use assay_reference::Dtype;
use libloading::Library as Object;

use crate::backend::Backend;
#[cfg(feature = "hip")]
use crate::device::HipDevice;
use crate::error::Error;
use crate::identity::{BackendKind, Identity, sha256};
use crate::kernels::Kernel;

/// Which library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// `librocblas.so`.
    RocBlas,
    /// `libhipblaslt.so`.
    HipBlasLt,
}

impl Vendor {
    /// As its makers write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Vendor::RocBlas => "rocBLAS",
            Vendor::HipBlasLt => "hipBLASLt",
        }
    }

    /// Names that a loader may know it by, the unversioned first.
    fn files(self) -> &'static [&'static str] {
        match self {
            Vendor::RocBlas => {
                &["librocblas.so", "librocblas.so.5", "librocblas.so.4", "librocblas.so.0"]
            }
            Vendor::HipBlasLt => &["libhipblaslt.so", "libhipblaslt.so.1", "libhipblaslt.so.0"],
        }
    }

    /// The first function that is called.
    fn entry(self) -> &'static str {
        match self {
            Vendor::RocBlas => "rocblas_create_handle",
            Vendor::HipBlasLt => "hipblasLtCreate",
        }
    }

    /// What to install.
    fn install(self) -> &'static str {
        match self {
            Vendor::RocBlas => {
                "install it (DTK has it, ROCm: apt-get install rocblas) and source env.sh or set ROCM_PATH"
            }
            Vendor::HipBlasLt => {
                "install it (DTK has it, ROCm: apt-get install hipblaslt) and source env.sh or set \
                 ROCM_PATH"
            }
        }
    }
}

/// One function of a library as something to be checked.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Name, op and typed launcher, as of a kernel. Runs on [`Backend::Library`] only.
    pub kernel: Kernel,
    /// Whose it is.
    pub vendor: Vendor,
    /// Dtype of its operands and results.
    pub dtype: Dtype,
}

/// All subjects.
#[must_use]
pub fn subjects() -> &'static [Subject] {
    static SUBJECTS: LazyLock<Vec<Subject>> = LazyLock::new(|| {
        let subject = |name, vendor, dtype, run| Subject {
            kernel: Kernel {
                name,
                op: "matmul",
                source: "",
                mutants: Vec::new(),
                controls: Vec::new(),
                run,
            },
            vendor,
            dtype,
        };
        vec![
            subject("rocblas.gemm_bf16", Vendor::RocBlas, Dtype::Bf16, gemm::rocblas_bf16),
            subject("rocblas.sgemm", Vendor::RocBlas, Dtype::F32, gemm::rocblas_f32),
            subject("hipblaslt.gemm_bf16", Vendor::HipBlasLt, Dtype::Bf16, gemm::hipblaslt_bf16),
            subject("hipblaslt.gemm_f32", Vendor::HipBlasLt, Dtype::F32, gemm::hipblaslt_f32),
        ]
    });
    &SUBJECTS
}

/// The subject of this name.
#[must_use]
pub fn subject(name: &str) -> Option<&'static Subject> {
    subjects().iter().find(|subject| subject.kernel.name == name)
}

/// Whose memory a library works on.
#[derive(Clone, Debug)]
pub enum Place {
    /// The host's: for implementations of the same functions on the CPU, as tests have.
    Host,
    /// A device's.
    #[cfg(feature = "hip")]
    Device(HipDevice),
}

enum Api {
    RocBlas(rocblas::RocBlas),
    HipBlasLt(hipblaslt::HipBlasLt),
}

struct Inner {
    // Absolute, as the loader found it.
    file: PathBuf,
    version: String,
    place: Place,
    api: Api,
}

/// A loaded library with its handle. Cheap to clone.
#[derive(Clone)]
pub struct Library(Arc<Inner>);

/// The library of `vendor` on the first device.
///
/// # Errors
/// [`Error::NoDevice`] and [`Error::NoLibrary`]: then it is skipped, not passed. [`Error::Library`] when
/// it is there and answers an error.
pub fn open(vendor: Vendor) -> Result<Backend, Error> {
    let object = find(vendor);
    let device = match Backend::device() {
        Ok(device) => device,
        // Both reasons, so that neither is mended in vain.
        Err(Error::NoDevice { reason }) => {
            let reason = match object {
                Ok(_) => reason,
                Err(missing) => format!("{reason}; {missing}"),
            };
            return Err(Error::NoDevice { reason });
        }
        Err(e) => return Err(e),
    };
    let (object, path) = object?;
    match device {
        #[cfg(feature = "hip")]
        Backend::Device(device) => {
            Library::start(vendor, object, &path, Place::Device(device)).map(Backend::Library)
        }
        _ => {
            drop(object);
            let reason = format!("{} needs a device", path.display());
            Err(Error::NoDevice { reason })
        }
    }
}

/// Loads the library from the loader's path, or from `$ROCM_PATH/lib`.
fn find(vendor: Vendor) -> Result<(Object, PathBuf), Error> {
    let folder = std::env::var_os("ROCM_PATH").map(|rocm| PathBuf::from(rocm).join("lib"));
    let names = vendor.files().iter().map(PathBuf::from);
    let in_folder = folder.iter().flat_map(|f| vendor.files().iter().map(move |n| f.join(n)));
    let mut said = Vec::new();
    for path in in_folder.chain(names) {
        match object::load(&path) {
            Ok(object) => return Ok((object, path)),
            Err(e) => said.push((path, e)),
        }
    }
    // One that is there says more than one that is not: what it lacks, or what is wrong with it.
    let mut told: Vec<&str> =
        said.iter().filter(|(path, e)| !object::is_absent(path, e)).map(|(_, e)| &**e).collect();
    told.dedup();
    let reason = if told.is_empty() {
        let first = said.first().map_or("", |(_, e)| e);
        format!("{first}; {}", vendor.install())
    } else {
        let mend = "it is there and does not load: install what it names, or source env.sh of DTK";
        format!("{}; {mend}", told.join("; "))
    };
    Err(Error::NoLibrary { library: vendor.name(), reason })
}

impl Library {
    /// A library from a file, over memory of `place`.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] when it cannot be loaded or lacks a function, [`Error::Library`] when it
    /// answers an error.
    pub fn open(vendor: Vendor, path: &Path, place: Place) -> Result<Library, Error> {
        let object = object::load(path)
            .map_err(|reason| Error::NoLibrary { library: vendor.name(), reason })?;
        Library::start(vendor, object, path, place)
    }

    fn start(vendor: Vendor, object: Object, path: &Path, place: Place) -> Result<Library, Error> {
        let file = object::file(&object, path, vendor.name(), vendor.entry())?;
        let (api, version) = match vendor {
            Vendor::RocBlas => {
                let (api, version) = rocblas::RocBlas::new(object)?;
                (Api::RocBlas(api), version)
            }
            Vendor::HipBlasLt => {
                let (api, version) = hipblaslt::HipBlasLt::new(object)?;
                (Api::HipBlasLt(api), version)
            }
        };
        Ok(Library(Arc::new(Inner { file, version, place, api })))
    }

    /// What it says of its version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.0.version
    }

    /// Whose memory it works on.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.0.place
    }

    pub(crate) fn kind(&self) -> BackendKind {
        match self.0.place {
            Place::Host => BackendKind::Process,
            #[cfg(feature = "hip")]
            Place::Device(_) => BackendKind::Hip,
        }
    }

    /// The shared object by content, where the loader found it. Tensile's code objects, which lie in
    /// other files, are not in it; the version stands for them.
    pub(crate) fn identity(&self, name: &str) -> Result<Identity, Error> {
        let bytes = std::fs::read(&self.0.file).map_err(Error::io("read", &self.0.file))?;
        let (arch, runtime) = match &self.0.place {
            Place::Host => (std::env::consts::ARCH.to_owned(), "the host".to_owned()),
            #[cfg(feature = "hip")]
            Place::Device(device) => (device.arch().to_owned(), device.runtime()),
        };
        Ok(Identity {
            kernel: name.to_owned(),
            backend: self.kind(),
            arch,
            source: sha256(self.version()),
            code: sha256(bytes),
            toolchain: self.version().to_owned(),
            runtime,
        })
    }
}
