//! Machines made of files and shell scripts.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use super::devices::{gfx_names, smi_free};
use super::{Check, Machine, State, examine};

/// A box with one K100_AI, DTK 25.04 sourced, and a Python that fits.
struct Rig {
    folder: tempfile::TempDir,
    machine: Machine,
}

impl Rig {
    fn new() -> Rig {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().to_path_buf();
        let path = |p: &str| root.join(p).to_string_lossy().into_owned();
        let env = BTreeMap::from([
            ("PATH".to_owned(), format!("{}:/usr/bin:/bin", path("bin"))),
            ("ROCM_PATH".to_owned(), path("opt/dtk-25.04")),
            ("LD_LIBRARY_PATH".to_owned(), path("opt/dtk-25.04/lib")),
            ("TRITON_HIP_LLD_PATH".to_owned(), path("opt/dtk-25.04/ld.lld")),
        ]);
        let python = path("bin/python");
        let limit = Duration::from_secs(20);
        let b = Rig { machine: Machine { root, env, python, limit }, folder };
        for file in ["dev/kfd", "dev/dri/renderD128", "opt/hyhal/x", "opt/dtk-25.04/ld.lld"] {
            b.file(file, "");
        }
        b.file("opt/dtk-25.04/lib/librocblas.so.4", "hipv4-amdgcn-amd-amdhsa--gfx928:sramecc+");
        b.script("rocminfo", "echo '  Name: gfx928'");
        b.script("rocm_agent_enumerator", "echo gfx000; echo gfx928");
        b.script("hy-smi", "echo '{\"card0\": {\"vram Total Memory (MiB)\": \"65520\", \"vram Total Used Memory (MiB)\": \"520\"}}'");
        b.script("hipcc", "case \"$*\" in *--version*) echo 'HIP version: 6.3';; *--offload-arch=gfx928*) exit 0;; *) exit 1;; esac");
        b.python("numpy|1.26|torch|2.4|abi|ok|subnormals|kept", "ok|gfx928", "68157440000");
        b
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, text).expect("written");
    }

    fn script(&self, name: &str, text: &str) {
        self.file(&format!("bin/{name}"), &format!("#!/bin/sh\n{text}\n"));
        let path = self.folder.path().join("bin").join(name);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("set");
    }

    /// What the three scripts that are run by the interpreter answer.
    fn python(&self, packages: &str, triton: &str, free: &str) {
        let words: Vec<&str> = packages.split('|').collect();
        let lines: Vec<String> =
            words.chunks(2).map(|w| format!("echo '{}|{}'", w[0], w[1])).collect();
        let text = format!(
            "case \"$2\" in *GPUTarget*) echo '{triton}';; *mem_get_info*) echo {free};; *) {};; esac",
            lines.join("; ")
        );
        self.script("python", &text);
    }

    fn checks(&self) -> Vec<Check> {
        examine(&self.machine, &mut |_| {})
    }

    /// The only check of a state, by name, with what it found.
    #[track_caller]
    fn says(&self, state: State, name: &str, found: &str) {
        let checks = self.checks();
        let worse: Vec<&Check> =
            checks.iter().filter(|c| matches!(c.state, State::Bad | State::Warning)).collect();
        assert!(
            worse.len() == 1
                && worse[0].state == state
                && worse[0].name == name
                && worse[0].found.contains(found)
                && !worse[0].advice.is_empty(),
            "{checks:#?}"
        );
    }
}

#[test]
fn a_box_that_is_as_it_should_be_has_no_complaint() {
    let checks = Rig::new().checks();
    assert!(checks.iter().all(|c| c.state == State::Ok), "{checks:#?}");
    assert_eq!(checks.len(), 11, "{checks:#?}");
}

#[test]
fn each_thing_that_is_wrong_is_named() {
    let mut b = Rig::new();
    b.machine.env.remove("ROCM_PATH");
    b.says(State::Bad, "toolchain.environment", "ROCM_PATH is not set");

    let mut b = Rig::new();
    b.file("opt/dtk-25.04/lld", "");
    let lld = b.folder.path().join("opt/dtk-25.04/lld").to_string_lossy().into_owned();
    b.machine.env.insert("TRITON_HIP_LLD_PATH".into(), lld);
    b.says(State::Bad, "triton.linker", "does not end in ld.lld");

    let b = Rig::new();
    b.file("opt/dtk-25.04/lib/librocblas.so.4", "amdgcn-amd-amdhsa--gfx906");
    b.says(State::Bad, "libraries", "gfx906 and not for gfx928");

    let b = Rig::new();
    b.script("hipcc", "case \"$*\" in *--version*) echo 'HIP version: 5.2';; *) echo \"invalid target ID\" >&2; exit 1;; esac");
    b.says(State::Bad, "toolchain.arch", "invalid target ID");

    let b = Rig::new();
    std::fs::remove_dir_all(b.folder.path().join("opt/hyhal")).expect("removed");
    b.says(State::Bad, "driver", "/opt/hyhal");

    let b = Rig::new();
    b.python(
        "numpy|2.1|torch|2.4|no_abi|RuntimeError: Numpy is not available|subnormals|kept",
        "ok|gfx928",
        "68157440000",
    );
    b.says(State::Bad, "python.numpy", "Numpy is not available");

    let b = Rig::new();
    b.python(
        "numpy|1.26|torch|2.4|abi|ok|imported|vllm|subnormals|flushed",
        "ok|gfx928",
        "68157440000",
    );
    b.says(State::Warning, "python.subnormals", "numpy, torch, vllm");

    let b = Rig::new();
    b.python("numpy|1.26|torch|2.4|abi|ok|subnormals|kept", "bad|gfx928 KeyError", "68157440000");
    b.says(State::Bad, "triton.arch", "does not compile for gfx928");

    let b = Rig::new();
    b.python("numpy|1.26|torch|2.4|abi|ok|subnormals|kept", "ok|gfx928", "1073741824");
    b.says(State::Warning, "devices.memory", "63.5 by hy-smi, 1.0 by torch");

    let mut b = Rig::new();
    for name in ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"] {
        b.machine.env.insert(name.into(), "1".into());
    }
    b.says(State::Warning, "devices.visible", "HIP_VISIBLE_DEVICES=1 ROCR_VISIBLE_DEVICES=1");
}

#[test]
fn a_machine_without_anything_is_not_applicable() {
    let folder = tempfile::tempdir().expect("a folder");
    let env = BTreeMap::from([("PATH".to_owned(), "/nowhere".to_owned())]);
    let root = folder.path().to_path_buf();
    let machine =
        Machine { root, env, python: "no-such-python".into(), limit: Duration::from_secs(5) };
    let checks = examine(&machine, &mut |_| {});
    assert!(checks.iter().all(|c| c.state == State::NotApplicable), "{checks:#?}");
}

#[test]
fn a_python_that_crashes_or_hangs_is_bad_and_what_was_not_imported_is_not_claimed() {
    let b = Rig::new();
    b.script("python", "kill -SEGV $$");
    b.says(State::Bad, "python", "failed without a word");
    let b = Rig::new();
    b.python("numpy|1.26|no_torch|ModuleNotFoundError|subnormals|kept", "ok|gfx928", "68157440000");
    let checks = b.checks();
    let kept = checks.iter().find(|c| c.name == "python.subnormals").expect("a check");
    assert_eq!(kept.found, "kept after importing numpy");
}

#[test]
fn what_a_program_leaves_behind_is_not_waited_for() {
    let b = Rig::new();
    b.script("rocminfo", "echo '  Name: gfx928'; sleep 30 &");
    let said = b.machine.tool("rocminfo", &[]);
    assert_eq!(said.output(), Some("  Name: gfx928\n"));
}

#[test]
fn a_program_that_hangs_is_ended() {
    let b = Rig::new();
    b.script("rocminfo", "exec sleep 60");
    let mut machine = b.machine.clone();
    machine.limit = Duration::from_millis(200);
    assert_eq!(machine.tool("rocminfo", &[]).failure(), "did not end in time");
}

#[test]
fn outputs_of_the_tools_are_read() {
    let names: Vec<String> =
        gfx_names("gfx000 gfx928:sramecc+:xnack- gfx90a gfx1030").into_iter().collect();
    assert_eq!(names, ["gfx1030", "gfx90a", "gfx928"]);
    let rocm = r#"{"card0": {"VRAM Total Memory (B)": "100", "VRAM Total Used Memory (B)": "40"}, "system": {}}"#;
    assert_eq!(smi_free(rocm), Some(vec![60]));
    assert_eq!(smi_free("no json"), None);
}
