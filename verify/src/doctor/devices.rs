//! The driver, the devices and their memory, from every view that the machine has.

use std::collections::BTreeSet;

use assay_hip::Arch;

use super::{Check, Machine};

/// Variables that hide devices from a process.
const HIDING: &[&str] =
    &["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"];

/// Architectures of the devices: `gfx928`, without features. Empty where there is none.
pub(super) fn archs(machine: &Machine) -> BTreeSet<String> {
    let listed = machine.tool("rocm_agent_enumerator", &[]);
    let listed = listed.output().unwrap_or_default().to_owned();
    let info = machine.tool("rocminfo", &[]);
    let info = info.output().unwrap_or_default().to_owned();
    gfx_names(&listed).union(&gfx_names(&info)).cloned().collect()
}

/// Words like `gfx928` in a text, cut at the colon of `gfx928:sramecc+`. `gfx000` stands for a CPU.
pub(super) fn gfx_names(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for part in text.split("gfx").skip(1) {
        let digits: String = part.chars().take_while(char::is_ascii_hexdigit).collect();
        if digits.len() >= 3 && digits != "000" {
            names.insert(format!("gfx{digits}"));
        }
    }
    names
}

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let kfd = machine.path("/dev/kfd").exists();
    if !kfd {
        let found = "no /dev/kfd: this machine, or this container, has no AMD or Hygon device";
        return vec![Check::absent("driver", found)];
    }
    vec![driver(machine), hidden(machine), memory(machine)]
}

fn driver(machine: &Machine) -> Check {
    const NAME: &str = "driver";
    let nodes = std::fs::read_dir(machine.path("/dev/dri")).into_iter().flatten().flatten();
    let nodes = nodes.filter(|e| e.file_name().to_string_lossy().starts_with("renderD")).count();
    let archs = archs(machine);
    if nodes == 0 {
        return Check::bad(
            NAME,
            "/dev/kfd is there, but no /dev/dri/renderD*",
            "start the container with --device=/dev/kfd --device=/dev/dri and the group of these files",
        );
    }
    if archs.is_empty() {
        return Check::bad(
            NAME,
            format!(
                "{nodes} render nodes, but neither rocminfo nor rocm_agent_enumerator names a device"
            ),
            "source env.sh of DTK (or add ROCm's bin folder to PATH), and see that the user may open /dev/kfd",
        );
    }
    let hygon = archs.iter().any(|a| Arch::named(a).is_some_and(|a| a.dtk_only));
    if hygon && !machine.path("/opt/hyhal").is_dir() {
        return Check::bad(
            NAME,
            format!("{} devices, but /opt/hyhal is not here", list(&archs)),
            "mount the host's /opt/hyhal into the container (-v /opt/hyhal:/opt/hyhal:ro): without it \
             librocm_smi64 and hy-smi are missing",
        );
    }
    Check::ok(NAME, format!("{nodes} render nodes; {}", list(&archs)))
}

pub(super) fn list(names: &BTreeSet<String>) -> String {
    names.iter().cloned().collect::<Vec<_>>().join(", ")
}

fn hidden(machine: &Machine) -> Check {
    const NAME: &str = "devices.visible";
    let set: Vec<String> =
        HIDING.iter().filter_map(|v| Some(format!("{v}={}", machine.env.get(*v)?))).collect();
    match set.len() {
        0 => Check::ok(NAME, "no variable hides a device"),
        1 => Check::ok(NAME, set.join(" ")),
        _ => Check::warning(
            NAME,
            set.join(" "),
            "set one of them only: each renumbers what the others leave",
        ),
    }
}

/// Bytes free on each device by the SMI tool and by torch: a difference is a process that one of
/// them does not see.
fn memory(machine: &Machine) -> Check {
    const NAME: &str = "devices.memory";
    let smi = ["hy-smi", "rocm-smi"].iter().find_map(|tool| {
        let said = machine.tool(tool, &["--showmeminfo", "vram", "--json"]);
        smi_free(said.output()?).map(|free| (*tool, free))
    });
    let script = "import torch\nfor i in range(torch.cuda.device_count()): print(torch.cuda.mem_get_info(i)[0])";
    let torch = machine.tool(&machine.python, &["-c", script]);
    let torch: Option<Vec<u64>> =
        torch.output().map(|out| out.lines().filter_map(|l| l.trim().parse().ok()).collect());
    let gib = |free: &[u64]| {
        let one = |b: &u64| format!("{:.1}", *b as f64 / f64::from(1 << 30));
        free.iter().map(one).collect::<Vec<_>>().join(" ")
    };
    match (smi, torch.filter(|t| !t.is_empty())) {
        (Some((tool, a)), Some(b)) => {
            let found = format!("GiB free: {} by {tool}, {} by torch", gib(&a), gib(&b));
            let apart = a.iter().zip(&b).any(|(a, b)| a.abs_diff(*b) > 2 << 30);
            if a.len() != b.len() || apart {
                let advice = "the two views differ: devices are hidden or numbered otherwise, or another \
                              container holds memory; give the service the device that is free in both";
                return Check::warning(NAME, found, advice);
            }
            Check::ok(NAME, found)
        }
        (Some((tool, a)), None) => Check::ok(NAME, format!("GiB free: {} by {tool}", gib(&a))),
        (None, Some(b)) => Check::ok(NAME, format!("GiB free: {} by torch", gib(&b))),
        (None, None) => {
            Check::absent(NAME, "neither hy-smi, rocm-smi nor torch tells the free memory")
        }
    }
}

/// Total less used of each card, from `--showmeminfo vram --json`.
pub(super) fn smi_free(json: &str) -> Option<Vec<u64>> {
    let value: serde_json::Value = serde_json::from_str(json).ok()?;
    let mut cards: Vec<(&String, &serde_json::Value)> =
        value.as_object()?.iter().filter(|(k, _)| k.starts_with("card")).collect();
    let number = |k: &str| k.trim_start_matches("card").parse::<u32>().unwrap_or(u32::MAX);
    cards.sort_by_key(|(k, _)| number(k));
    let free = |card: &serde_json::Value| {
        let of = |used: bool| {
            card.as_object()?.iter().find_map(|(k, v)| {
                let k = k.to_lowercase();
                let wanted =
                    k.contains("total") && k.contains("memory") && k.contains("used") == used;
                let unit = if k.contains("mib") { 1 << 20 } else { 1 };
                let number = v.as_u64().or_else(|| v.as_str()?.trim().parse().ok())?;
                wanted.then_some(number.checked_mul(unit)?)
            })
        };
        Some(of(false)?.saturating_sub(of(true)?))
    };
    let all: Option<Vec<u64>> = cards.iter().map(|(_, card)| free(card)).collect();
    all.filter(|a| !a.is_empty())
}
