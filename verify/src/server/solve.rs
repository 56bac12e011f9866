//! Wrong forwards with a value that is solved for: theta, eps, and one tensor times a factor. They name what an altered
//! checkpoint does, which no catalogue can list.

use std::collections::BTreeSet;
use std::sync::Arc;

use assay_reference::Result;
use assay_reference::arith::math;
use assay_reference::checkpoint::{Checkpoint, Config};
use assay_reference::qwen::{Source, Wiring};

use super::search::{BEAM, Hypothesis, Search};
use crate::minimum::minimum;

/// Steps of the golden section: it narrows an interval to 0.618^n.
const STEPS: usize = 16;
/// Factors at which a tensor is tried first.
const SCREEN: [f64; 2] = [0.8, 1.25];
/// Factors between which the best one is sought.
const FACTORS: [f64; 9] = [-1.0, -0.3, 0.0, 0.4, 0.8, 1.25, 2.0, 4.0, 8.0];
/// The most tensors that are tried.
const MOST_TENSORS: usize = 512;

/// The solved hypotheses that come nearest.
pub(super) fn hypotheses(search: &mut Search<'_>) -> Result<Vec<Hypothesis>> {
    let mut found: Vec<(f64, Hypothesis)> = Vec::new();
    let config = search.checkpoint.config().clone();
    // Powers of ten from 10^2 to 10^10 and 10^-13 to 10^-2, in halves.
    let thetas: Vec<f64> = (4..=20).map(|h| f64::from(h) / 2.0).collect();
    let epsilons: Vec<f64> = (-26..=-4).map(|h| f64::from(h) / 2.0).collect();
    found.extend(best(search, &thetas, &|x| theta(&config, power(x)))?);
    found.extend(best(search, &epsilons, &|x| eps(&config, power(x)))?);
    let names = tensors(&Wiring::new(&config, search.roundings.first().angle));
    if names.len() > MOST_TENSORS {
        let what = format!("factors of {} tensors: a tap tells the layer first", names.len());
        search.outcome.left_out.push(what);
    } else {
        let mut screened = Vec::new();
        for name in names {
            for factor in SCREEN {
                if let Some(d) = search.distance(&scaled(&config, &name, factor))? {
                    screened.push((d, name.clone()));
                }
            }
        }
        screened.retain(|(d, _)| *d < search.right);
        screened.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut seen = BTreeSet::new();
        screened.retain(|(_, name)| seen.insert(name.clone()));
        for (_, name) in screened.into_iter().take(BEAM) {
            found.extend(best(search, &FACTORS, &|x| scaled(&config, &name, x))?);
        }
    }
    let right = search.right;
    found.retain(|(d, _)| *d < right);
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(found.into_iter().take(BEAM).map(|(_, h)| h).collect())
}

fn power(x: f64) -> f64 {
    math::pow(10.0, x)
}

/// The best of a family of one value: the nearest of `grid`, then a golden section between its neighbours.
fn best(
    search: &mut Search<'_>,
    grid: &[f64],
    of: &dyn Fn(f64) -> Hypothesis,
) -> Result<Option<(f64, Hypothesis)>> {
    let mut at = |x: f64| -> Result<f64> { Ok(search.distance(&of(x))?.unwrap_or(f64::INFINITY)) };
    Ok(minimum(grid, STEPS, &mut at)?.map(|(distance, x)| (distance, of(x))))
}

fn edited(
    config: &Config,
    edit: impl Fn(&mut Config) + Send + Sync + 'static,
) -> super::search::Wire {
    let config = config.clone();
    Arc::new(move |preset| {
        let mut believed = config.clone();
        edit(&mut believed);
        Wiring::new(&believed, preset.angle)
    })
}

fn theta(config: &Config, value: f64) -> Hypothesis {
    Hypothesis {
        code: "A300",
        name: "forward.rope_theta".into(),
        label: format!("forward.rope_theta (about {value:.3e})"),
        detail: format!("rope theta is about {value:.3e} instead of {:e}", config.rope_theta),
        source: "",
        wire: edited(config, move |c| c.rope_theta = value),
    }
}

fn eps(config: &Config, value: f64) -> Hypothesis {
    Hypothesis {
        code: "A301",
        name: "forward.rms_norm_eps".into(),
        label: format!("forward.rms_norm_eps (about {value:.2e})"),
        detail: format!("the norms' eps is about {value:.2e} instead of {:e}", config.rms_norm_eps),
        source: "",
        wire: edited(config, move |c| c.rms_norm_eps = value),
    }
}

/// Tensors whose factor can be solved for: those of the layers, and the final norm's weight, which scales the logits.
/// Embedding and head are too large to be copied.
fn tensors(wiring: &Wiring) -> Vec<String> {
    let floats = [".weight", ".bias", ".scales"];
    let mut names = BTreeSet::new();
    for node in wiring.plan.nodes.iter().filter(|n| n.op != "embedding" && n.probe != "logits") {
        for (_, source) in &node.inputs {
            if let Source::Weight(name) = source
                && floats.iter().any(|f| name.ends_with(f))
                && !name.contains(".experts.")
            {
                names.insert(name.clone());
            }
        }
    }
    names.into_iter().collect()
}

fn scaled(config: &Config, tensor: &str, factor: f64) -> Hypothesis {
    let (code, name, detail) = if tensor == "model.norm.weight" {
        let detail = format!(
            "the logits are {factor:.3} times the model's (a temperature of {:.3})",
            1.0 / factor
        );
        ("A4D1", "server.logits_scaled", detail)
    } else if factor.abs() < 0.02 {
        ("A4D0", "server.tensor_scaled", format!("`{tensor}` is zero, or was not loaded"))
    } else {
        (
            "A4D0",
            "server.tensor_scaled",
            format!("`{tensor}` is {factor:.3} times the checkpoint's"),
        )
    };
    let (config, tensor) = (config.clone(), tensor.to_owned());
    Hypothesis {
        code,
        name: name.into(),
        label: format!("{name} ({tensor} times {factor:.3})"),
        detail,
        source: "",
        wire: Arc::new(move |preset| {
            let mut wiring = Wiring::new(&config, preset.angle);
            let new = format!("{tensor} scaled");
            for node in &mut wiring.plan.nodes {
                for (_, source) in &mut node.inputs {
                    if matches!(source, Source::Weight(name) if *name == tensor) {
                        *source = Source::Weight(new.clone());
                    }
                }
            }
            let tensor = tensor.clone();
            let make = move |checkpoint: &Checkpoint| {
                Ok(checkpoint.tensor(&tensor)?.map(|_, value| value * factor))
            };
            wiring.made.insert(new, Arc::new(make));
            wiring
        }),
    }
}
