//! Norms: left out, in another place, with the wrong weight or another rule.

use super::{Entry, Form, Wiring};
use crate::checkpoint::Config;
use crate::qwen::plan::{Node, Source};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        code: "A330",
        slug: "qk_norm_missing",
        summary: "the per-head norm of q, k or both left out",
        source: "https://github.com/tenstorrent/tt-mlir/issues/9042",
        make: |c| {
            let form = |key: &'static str| {
                Form::new(key, format!("the norm over each head of {key} is left out")).nodes(
                    move |node| {
                        if is_qk_norm(node)
                            && (key == "q and k" || node.probe.ends_with(&format!("{key}_norm")))
                        {
                            node.params["skipped"] = true.into();
                        }
                    },
                )
            };
            if has_qk_norm(c) { vec![form("q and k"), form("q"), form("k")] } else { Vec::new() }
        },
    },
    Entry {
        code: "A331",
        slug: "qk_norm_after_rope",
        summary: "the per-head norms applied after the rotation",
        source: "https://github.com/tenstorrent/tt-mlir/issues/9125",
        make: |c| {
            let form = Form::new("", "q and k are rotated first, then normalised")
                .wiring(|w, _| rope_first(w));
            has_qk_norm(c).then_some(form).into_iter().collect()
        },
    },
    Entry {
        code: "A332",
        slug: "qk_norm_exchanged",
        summary: "q_norm's weight used for k and k_norm's for q",
        source: "https://github.com/tenstorrent/tt-mlir/issues/9125",
        make: |c| {
            let form = Form::new("", "q_norm's weight is used for k and k_norm's for q")
                .nodes(|node| super::weights::exchange(node, ".q_norm.", ".k_norm."));
            has_qk_norm(c).then_some(form).into_iter().collect()
        },
    },
    Entry {
        code: "A333",
        slug: "layer_norms_exchanged",
        summary: "input_layernorm's and post_attention_layernorm's weights exchanged",
        source: "https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/tensor_mapping.py",
        make: |_| {
            let detail = "each layer's two norms have each other's weight";
            vec![Form::new("", detail).nodes(|node| {
                super::weights::exchange(node, ".input_layernorm.", ".post_attention_layernorm.");
            })]
        },
    },
    Entry {
        code: "A334",
        slug: "norm_weight_plus_one",
        summary: "norms multiply by 1 + weight, as in Gemma",
        source: "https://arxiv.org/abs/2403.08295",
        make: |_| {
            let detail = "every norm multiplies by 1 + weight";
            vec![Form::new("", detail).param("rms_norm", "weight", "plus_one")]
        },
    },
    Entry {
        code: "A335",
        slug: "norm_centred",
        summary: "norms subtract the mean, as LayerNorm does",
        source: "https://arxiv.org/abs/1910.07467",
        make: |_| {
            let detail = "every norm subtracts the row's mean first";
            vec![Form::new("", detail).param("rms_norm", "centred", true)]
        },
    },
    Entry {
        code: "A336",
        slug: "final_norm_missing",
        summary: "the head reads the residual stream without the final norm",
        source: "https://github.com/huggingface/transformers/blob/main/src/transformers/models/qwen3/modeling_qwen3.py",
        make: |_| {
            let form = Form::new("", "the final norm is left out").nodes(|node| {
                if node.probe == "final_norm" {
                    node.params["skipped"] = true.into();
                }
            });
            vec![form.everywhere()]
        },
    },
    Entry {
        code: "A337",
        slug: "layer_norm_missing",
        summary: "the norm before attention or before the MLP left out",
        source: "https://arxiv.org/abs/2002.04745",
        make: |_| {
            let form = |key: &'static str, probe: &'static str| {
                Form::new(key, format!("the norm before {key} is left out in every layer")).nodes(
                    move |node| {
                        if node.probe.ends_with(probe) {
                            node.params["skipped"] = true.into();
                        }
                    },
                )
            };
            vec![form("attention", ".input_norm"), form("the MLP", ".post_norm")]
        },
    },
];

fn has_qk_norm(c: &Config) -> bool {
    c.architecture.has_qk_norm()
}

fn is_qk_norm(node: &Node) -> bool {
    node.probe.ends_with(".q_norm") || node.probe.ends_with(".k_norm")
}

/// Exchanges each per-head norm with the rotation after it. Their outputs keep their probes' names by
/// what they are for: `q_rope` is what attention reads.
fn rope_first(w: &mut Wiring) {
    let nodes = &mut w.plan.nodes;
    for x in ["q", "k"] {
        for layer in 0..w.plan.layers {
            let at = |nodes: &[Node], what: &str| {
                let probe = format!("layers.{layer}.{x}_{what}");
                nodes.iter().position(|n| n.probe == probe)
            };
            let (Some(norm), Some(rope)) = (at(nodes, "norm"), at(nodes, "rope")) else { continue };
            let input = |n: &mut Node, new: Option<Source>| {
                let (_, x) =
                    n.inputs.iter_mut().find(|(arg, _)| arg == "x").expect("both ops read x");
                let old = x.clone();
                if let Some(new) = new {
                    *x = new;
                }
                old
            };
            // projection -> norm -> rope becomes projection -> rope -> norm.
            let (projected, normed) =
                (input(&mut nodes[norm], None), input(&mut nodes[rope], None));
            input(&mut nodes[norm], Some(normed));
            input(&mut nodes[rope], Some(projected));
            let (first, last) = (nodes[norm].probe.clone(), nodes[rope].probe.clone());
            (nodes[norm].probe, nodes[rope].probe) = (last, first);
            nodes.swap(norm, rope);
        }
    }
}
