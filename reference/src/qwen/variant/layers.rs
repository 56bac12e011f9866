//! Layers: the residual stream, and which layer's weights are where.

use serde_json::json;

use super::weights::rename;
use super::{Entry, Form, Wiring};
use crate::checkpoint::Config;
use crate::qwen::plan::{Node, Source, View};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        code: "A338",
        slug: "residual_after_norm",
        summary: "the residual taken after the norm instead of before it",
        source: "https://arxiv.org/abs/2002.04745",
        make: |_| {
            let form = |key: &'static str, halves: &'static [(&'static str, &'static str)]| {
                let detail =
                    format!("the residual around {key} is the norm's output, not its input");
                Form::new(key, detail).nodes(move |node| {
                    for (add, norm) in halves {
                        if let Some(layer) = layer_of(node, add) {
                            set(
                                node,
                                "a",
                                Source::Probe(format!("layers.{layer}.{norm}"), View::Flat),
                            );
                        }
                    }
                })
            };
            const ATTENTION: (&str, &str) = ("attn_residual", "input_norm");
            const MLP: (&str, &str) = ("mlp_residual", "post_norm");
            vec![
                form("both", &[ATTENTION, MLP]),
                form("attention", &[ATTENTION]),
                form("the MLP", &[MLP]),
            ]
        },
    },
    Entry {
        code: "A339",
        slug: "parallel_residual",
        summary: "attention and MLP beside one another on the same input, as in GPT-J",
        source: "https://github.com/kingoflolz/mesh-transformer-jax",
        make: |_| {
            let detail = "the MLP's norm reads the layer's input instead of the sum with attention";
            vec![Form::new("", detail).wiring(|w, _| parallel(w))]
        },
    },
    Entry {
        code: "A33A",
        slug: "layer_skipped",
        summary: "a layer left out",
        source: "https://arxiv.org/abs/2404.16710",
        make: |_| vec![Form::new("", "the layer is left out").wiring(|w, _| skip(w)).one_layer()],
    },
    Entry {
        code: "A33B",
        slug: "layer_repeated",
        summary: "a layer run twice",
        source: "https://github.com/arcee-ai/mergekit",
        make: |_| {
            vec![Form::new("", "the layer is run twice").wiring(|w, _| repeat(w)).one_layer()]
        },
    },
    Entry {
        code: "A33C",
        slug: "layer_weights_shared",
        summary: "one layer's weights used in all",
        source: "https://arxiv.org/abs/1909.11942",
        make: |c| {
            let last = c.num_hidden_layers - 1;
            let form = |key: &'static str, from: usize| {
                let detail = format!("the weights of layer {from} are used instead");
                Form::new(key, detail).nodes(move |n| read_layer(n, |_| from))
            };
            if uniform(c) { vec![form("last", last), form("first", 0)] } else { Vec::new() }
        },
    },
    Entry {
        code: "A33D",
        slug: "layer_weights_shifted",
        summary: "each layer has its neighbour's weights",
        source: "https://docs.vllm.ai/en/stable/serving/parallelism_scaling.html",
        make: |c| {
            let layers = c.num_hidden_layers;
            let form = |key: &'static str, by: usize| {
                let detail = format!("layer n has the weights of layer n {key}");
                Form::new(key, detail).nodes(move |n| read_layer(n, |l| (l + by) % layers))
            };
            match layers {
                _ if !uniform(c) => Vec::new(),
                0 | 1 => Vec::new(),
                2 => vec![form("+ 1", 1)],
                _ => vec![form("+ 1", 1), form("- 1", layers - 1)],
            }
        },
    },
    Entry {
        code: "A33E",
        slug: "residual_missing",
        summary: "the residual around attention or the MLP not added",
        source: "https://arxiv.org/abs/1512.03385",
        make: |_| {
            let form = |key: &'static str, add: &'static str| {
                Form::new(key, format!("the residual around {key} is not added")).nodes(move |n| {
                    if layer_of(n, add).is_some() {
                        n.params["operands"] = json!("second");
                    }
                })
            };
            vec![form("attention", "attn_residual"), form("the MLP", "mlp_residual")]
        },
    },
    Entry {
        code: "A33F",
        slug: "experts_shifted",
        summary: "each expert has its neighbour's weights",
        source: "https://docs.vllm.ai/en/stable/serving/expert_parallel_deployment.html",
        make: |c| {
            let form = Form::new("", "expert e has the weights of expert e + 1").param(
                "moe_experts",
                "shift",
                1,
            );
            c.moe.is_some().then_some(form).into_iter().collect()
        },
    },
];

/// The layer of the node that records `layers.N.<name>`.
fn layer_of(node: &Node, name: &str) -> Option<usize> {
    node.layer.filter(|l| node.probe == format!("layers.{l}.{name}"))
}

fn set(node: &mut Node, arg: &str, source: Source) {
    if let Some((_, s)) = node.inputs.iter_mut().find(|(a, _)| a == arg) {
        *s = source;
    }
}

fn get(node: &Node, arg: &str) -> Option<Source> {
    node.inputs.iter().find(|(a, _)| a == arg).map(|(_, s)| s.clone())
}

/// Whether every layer has the same tensors.
fn uniform(c: &Config) -> bool {
    let one_kind = c.moe.as_ref().is_none_or(|m| m.sparse.windows(2).all(|w| w[0] == w[1]));
    c.num_hidden_layers > 1 && one_kind && c.quantization.is_none()
}

/// Reads the weights of another layer.
fn read_layer(node: &mut Node, of: impl Fn(usize) -> usize) {
    let Some(layer) = node.layer else { return };
    let (old, new) = (format!("model.layers.{layer}."), format!("model.layers.{}.", of(layer)));
    rename(node, |name| name.strip_prefix(&old).map(|rest| format!("{new}{rest}")));
}

fn parallel(w: &mut Wiring) {
    for layer in 0..w.plan.layers {
        let input = w.plan.node(&format!("layers.{layer}.input_norm")).and_then(|n| get(n, "x"));
        let post = format!("layers.{layer}.post_norm");
        if let Some(input) = input
            && let Some(node) = w.plan.nodes.iter_mut().find(|n| n.probe == post)
        {
            set(node, "x", input);
        }
    }
}

/// Each layer becomes a sum of its input and nothing.
fn skip(w: &mut Wiring) {
    for layer in 0..w.plan.layers {
        let input = w.plan.node(&format!("layers.{layer}.input_norm")).and_then(|n| get(n, "x"));
        w.plan.nodes.retain(|n| n.layer != Some(layer) || layer_of(n, "mlp_residual").is_some());
        let last = format!("layers.{layer}.mlp_residual");
        if let Some(input) = input
            && let Some(node) = w.plan.nodes.iter_mut().find(|n| n.probe == last)
        {
            node.params["operands"] = json!("first");
            set(node, "a", input.clone());
            set(node, "b", input);
        }
    }
}

/// Each layer's calls stand twice; those of the first time are called `layers.N.once.`.
fn repeat(w: &mut Wiring) {
    let mut nodes: Vec<Node> = Vec::with_capacity(2 * w.plan.nodes.len());
    for layer in 0..w.plan.layers {
        let (old, new) = (format!("layers.{layer}."), format!("layers.{layer}.once."));
        let ours = |n: &&Node| n.layer == Some(layer);
        let input = w.plan.node(&format!("layers.{layer}.input_norm")).and_then(|n| get(n, "x"));
        let Some(Source::Probe(input, _)) = input else { continue };
        let once = |p: &str| p.strip_prefix(&old).map(|rest| format!("{new}{rest}"));
        for node in w.plan.nodes.iter().filter(ours) {
            let mut node = node.clone();
            reread(&mut node, once);
            node.probe = once(&node.probe).unwrap_or(node.probe);
            nodes.push(node);
        }
        let output = format!("{new}mlp_residual");
        for node in w.plan.nodes.iter().filter(ours) {
            let mut node = node.clone();
            reread(&mut node, |p| (p == input).then(|| output.clone()));
            nodes.push(node);
        }
    }
    let first = w.plan.nodes.iter().position(|n| n.layer.is_some()).unwrap_or(0);
    w.plan.nodes.retain(|n| n.layer.is_none());
    w.plan.nodes.splice(first..first, nodes);
}

/// Renames the probes that a node reads.
fn reread(node: &mut Node, new: impl Fn(&str) -> Option<String>) {
    for (_, source) in &mut node.inputs {
        if let Source::Probe(name, _) | Source::History(name, _) = source
            && let Some(other) = new(name)
        {
            *name = other;
        }
    }
}
