//! Lenses: what a composite's part calls a knob or a fault, as a knob or a fault of the composite.

use std::sync::Arc;

use super::{Choice, Edit, Fault, Knob, Op, Setup};
use crate::policy::Policy;

/// Where a composite keeps the params and the policy of a part. The tensors are the composite's, and
/// so is the accumulator: a fused kernel has one.
pub(super) struct Lens<O: Op, P: Op> {
    /// The part's params.
    pub(super) params: fn(&mut O::Params) -> &mut P::Params,
    /// The part's policy.
    pub(super) policy: fn(&mut Policy) -> &mut Policy,
}

impl<O: Op, P: Op> Clone for Lens<O, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O: Op, P: Op> Copy for Lens<O, P> {}

impl<O: Op, P: Op> Lens<O, P> {
    /// An edit of the part as an edit of the composite.
    pub(super) fn edit(self, edit: Edit<P>) -> Edit<O> {
        Arc::new(move |s: &mut Setup<O>| {
            let mut policy = (self.policy)(&mut s.policy).clone();
            policy.acc = s.policy.acc;
            let params = (self.params)(&mut s.params).clone();
            let mut part = Setup::<P> { params, policy, tensors: std::mem::take(&mut s.tensors) };
            edit(&mut part);
            s.tensors = part.tensors;
            s.policy.acc = part.policy.acc;
            *(self.params)(&mut s.params) = part.params;
            *(self.policy)(&mut s.policy) = part.policy;
        })
    }

    /// A knob of the part.
    pub(super) fn knob(self, knob: Knob<P>) -> Knob<O> {
        let lift = |c: Choice<P>| Choice {
            value: c.value,
            framework_only: c.framework_only,
            rare: c.rare,
            edit: self.edit(c.edit),
        };
        Knob { name: knob.name, choices: knob.choices.into_iter().map(lift).collect() }
    }

    /// A fault of the part, with its code.
    pub(super) fn fault(self, fault: Fault<P>) -> Fault<O> {
        Fault {
            code: fault.code,
            slug: fault.slug,
            key: fault.key,
            detail: fault.detail,
            edit: self.edit(fault.edit),
        }
    }

    /// Faults of the part. `renamed` lists (slug, code, new slug) of those that are another thing inside
    /// the composite, as the store of an edge is.
    pub(super) fn faults(
        self,
        faults: Vec<Fault<P>>,
        renamed: &'static [(&'static str, &'static str, &'static str)],
    ) -> impl Iterator<Item = Fault<O>> {
        faults.into_iter().map(move |f| {
            let new = renamed.iter().find(|(slug, _, _)| *slug == f.slug);
            let (code, slug) = new.map_or((f.code, f.slug), |(_, code, slug)| (*code, *slug));
            Fault { code, slug, ..self.fault(f) }
        })
    }
}
