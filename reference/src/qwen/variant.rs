//! Wrong forwards: what engines get wrong about a whole model, as edits of its config, its plan and
//! its weights.
//!
//! A fault of an op is wrong arithmetic in one place; these are the right ops, put together wrongly: a
//! constant that the engine did not read, a bias that was never loaded, a step left out or in another
//! order, a position counted twice. Each runs as a [`Forward`](super::Forward), so that a recording of
//! logits alone can be compared with it.

mod attention;
mod constants;
mod layers;
mod norms;
mod rotary;
mod weights;
mod wiring;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

pub use self::wiring::{Make, Positions, Wiring};
use super::plan::{Node, Plan};
use crate::checkpoint::Config;
use crate::ops::rope::Angle;

/// A catalogued fault of the forward, before it is known whether it applies to a model.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Stable finding code: `A300`.
    pub code: &'static str,
    /// Name: the finding is `forward.<slug>`.
    pub slug: &'static str,
    /// What is wrong, in a few words.
    pub summary: &'static str,
    /// Where it was seen, or the model or paper whose rule it is.
    pub source: &'static str,
    /// Its forms for a config; none where it does not apply.
    make: fn(&Config) -> Vec<Form>,
}

impl Entry {
    /// `forward.<slug>`.
    pub fn name(&self) -> String {
        format!("forward.{}", self.slug)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.name(), self.summary)
    }
}

type ConfigEdit = Arc<dyn Fn(&mut Config) + Send + Sync>;
type WiringEdit = Arc<dyn Fn(&mut Wiring, &Config) + Send + Sync>;

/// One form of a fault: its parameter's value and what it changes.
struct Form {
    key: String,
    detail: String,
    config: Option<ConfigEdit>,
    wiring: Option<WiringEdit>,
    reach: Reach,
}

/// How much of a model a fault can concern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The model as a whole.
    Model,
    /// All layers, or some.
    Layers,
    /// Some layers; in all of them it makes no sense.
    SomeLayers,
}

impl Form {
    fn new(key: impl Into<String>, detail: impl Into<String>) -> Form {
        let (key, detail) = (key.into(), detail.into());
        Form { key, detail, config: None, wiring: None, reach: Reach::Layers }
    }

    /// The config that the engine believes in; the plan is made from it.
    fn config(mut self, edit: impl Fn(&mut Config) + Send + Sync + 'static) -> Form {
        self.config = Some(Arc::new(edit));
        self
    }

    /// What it does to the plan, the weights or the positions. It is given the true config.
    fn wiring(mut self, edit: impl Fn(&mut Wiring, &Config) + Send + Sync + 'static) -> Form {
        self.wiring = Some(Arc::new(edit));
        self
    }

    /// Edits each node of a plan.
    fn nodes(self, edit: impl Fn(&mut Node) + Send + Sync + 'static) -> Form {
        self.wiring(move |w, _| w.plan.nodes.iter_mut().for_each(&edit))
    }

    /// Sets a param of every call of an op.
    fn param(
        self,
        op: &'static str,
        name: &'static str,
        value: impl Into<serde_json::Value>,
    ) -> Form {
        let value = value.into();
        self.nodes(move |node| {
            if node.op == op {
                node.params[name] = value.clone();
            }
        })
    }

    /// Concerns the model as a whole.
    fn everywhere(mut self) -> Form {
        self.reach = Reach::Model;
        self
    }

    /// Concerns single layers.
    fn one_layer(mut self) -> Form {
        self.reach = Reach::SomeLayers;
        self
    }
}

/// A wrong forward of one model.
#[derive(Clone)]
pub struct ForwardFault {
    /// The catalogue's entry.
    pub entry: &'static Entry,
    /// Tells forms of one fault apart: `k`. May be empty.
    pub key: String,
    /// What is wrong, in one sentence with the parameter's value.
    pub detail: String,
    config: Option<ConfigEdit>,
    wiring: Option<WiringEdit>,
    /// How much of the model it can concern.
    pub reach: Reach,
    /// Faults of the whole model that it comes with.
    pub also: Vec<ForwardFault>,
    only: Option<Range<usize>>,
}

impl fmt::Debug for ForwardFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.entry.code, self.label(), self.detail)
    }
}

impl ForwardFault {
    /// `forward.bias_dropped (k)`; of several at once, joined by `+`.
    pub fn label(&self) -> String {
        let all = std::iter::once(self).chain(&self.also);
        all.map(ForwardFault::label_alone).collect::<Vec<_>>().join(" + ")
    }

    /// The same of this one alone.
    pub fn label_alone(&self) -> String {
        match self.key.as_str() {
            "" => self.entry.name(),
            key => format!("{} ({key})", self.entry.name()),
        }
    }

    /// The layers that are wrong; `None` is all of them.
    pub fn only(&self) -> Option<&Range<usize>> {
        self.only.as_ref()
    }

    /// The same fault in some layers only; `None` where it concerns the model as a whole, or changes
    /// nothing there.
    pub fn within(&self, layers: Range<usize>, config: &Config) -> Option<ForwardFault> {
        let fault = ForwardFault { only: Some(layers), ..self.clone() };
        let right = Wiring::new(config, Angle::F32);
        let wrong = fault.wiring(config, Angle::F32);
        let shadows = wrong.made.keys().any(|k| wrong.reads(k));
        (self.reach != Reach::Model && (wrong.plan.nodes != right.plan.nodes || shadows))
            .then_some(fault)
    }

    fn of(entry: &'static Entry, form: Form) -> ForwardFault {
        let Form { key, detail, config, wiring, reach } = form;
        ForwardFault { entry, key, detail, config, wiring, reach, also: Vec::new(), only: None }
    }

    /// Another base of the rotary angles, of any value.
    pub fn theta(config: &Config, value: f64) -> ForwardFault {
        ForwardFault::of(&constants::ENTRIES[0], constants::theta_form(config, value))
    }

    /// Another eps of the norms, of any value.
    pub fn eps(config: &Config, value: f64) -> ForwardFault {
        ForwardFault::of(&constants::ENTRIES[1], constants::eps_form(config, value))
    }

    /// Both faults at once, in the whole model: this one's edits first.
    #[must_use]
    pub fn and(&self, other: &ForwardFault) -> ForwardFault {
        let mut both = self.clone();
        both.also.push(other.clone());
        both
    }

    /// How the wrong forward of the model with this (true) config is put together.
    pub fn wiring(&self, config: &Config, angle: Angle) -> Wiring {
        let mut believed = config.clone();
        let all = || std::iter::once(self).chain(&self.also);
        all().filter_map(|f| f.config.as_ref()).for_each(|edit| edit(&mut believed));
        let mut wiring = Wiring::new(&believed, angle);
        all().filter_map(|f| f.wiring.as_ref()).for_each(|edit| edit(&mut wiring, config));
        if let Some(only) = &self.only {
            wiring.plan = spliced(&Plan::new(config, angle), &wiring, only);
        }
        wiring
    }
}

/// `right` with the layers in `only` from `wrong`. Tensors that `wrong` shadows are read under their
/// own names elsewhere.
fn spliced(right: &Plan, wrong: &Wiring, only: &Range<usize>) -> Plan {
    let mut nodes = Vec::with_capacity(right.nodes.len());
    let inside = |n: &Node| n.layer.is_some_and(|l| only.contains(&l));
    let mut replaced = false;
    for node in &right.nodes {
        if !inside(node) {
            nodes.push(node.clone());
        } else if !replaced {
            replaced = true;
            nodes.extend(wrong.plan.nodes.iter().filter(|n| inside(n)).cloned());
        }
    }
    Plan { nodes, layers: right.layers }
}

/// The catalogue, in the order of its codes.
pub fn catalogue() -> impl Iterator<Item = &'static Entry> {
    let parts: [&'static [Entry]; 6] = [
        constants::ENTRIES,
        weights::ENTRIES,
        rotary::ENTRIES,
        attention::ENTRIES,
        norms::ENTRIES,
        layers::ENTRIES,
    ];
    parts.into_iter().flatten()
}

/// The wrong forwards of a model: every fault of the catalogue that applies to its config. Those that
/// can only be in some layers are to be put there by [`ForwardFault::within`].
pub fn faults(config: &Config) -> Vec<ForwardFault> {
    let of = |entry: &'static Entry| {
        (entry.make)(config).into_iter().map(move |form| ForwardFault::of(entry, form))
    };
    catalogue().flat_map(of).collect()
}
