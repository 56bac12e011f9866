//! The instances of [`Basis`].

use std::any::Any;

use super::Basis;
use crate::arith::{Ball, Real, fenv::DefaultEnv};
use crate::error::{Error, Result};
use crate::ops::{Inputs, Op, Out, Setup, Tensors, Tile, Visitor, visit};
use crate::qwen::Preset;
use crate::qwen::plan::Node;

macro_rules! bases {
    ($($real:ty),* $(,)?) => {$(
        impl Basis for $real {
            fn eval(op: &str, setup: &dyn Any, tile: &Tile) -> Vec<Out<Self>> {
                visit(op, Eval { setup, tile, real: std::marker::PhantomData })
                    .unwrap_or_else(|| panic!("no op is called `{op}`"))
            }

            fn run(
                node: &Node,
                preset: &Preset,
                inputs: &Inputs<'_, Self>,
                stored: &Tensors,
            ) -> Result<Vec<Self>> {
                visit(node.op, Run { node, preset, inputs, stored }).ok_or_else(|| {
                    Error::Request(format!("the plan names an unknown op `{}`", node.op))
                })?
            }
        }
    )*};
}

bases!(f32, f64, Ball<24>, Ball<53>);

struct Eval<'a, R> {
    setup: &'a dyn Any,
    tile: &'a Tile,
    real: std::marker::PhantomData<R>,
}

impl<R: Real> Visitor for Eval<'_, R> {
    type Out = Vec<Out<R>>;

    fn visit<O: Op>(self) -> Vec<Out<R>> {
        let setup = self.setup.downcast_ref::<Setup<O>>().expect("a setup of the op that it names");
        let _env = DefaultEnv::enter();
        O::eval(&setup.params, &Inputs::stored(&setup.tensors), &setup.policy, self.tile)
    }
}

struct Run<'a, 'i, R: Real> {
    node: &'a Node,
    preset: &'a Preset,
    inputs: &'a Inputs<'i, R>,
    stored: &'a Tensors,
}

impl<R: Real> Visitor for Run<'_, '_, R> {
    type Out = Result<Vec<R>>;

    fn visit<O: Op>(self) -> Result<Vec<R>> {
        let (params, policy) = self.preset.apply::<O>(&self.node.params, self.stored)?;
        let mut out = O::eval(&params, self.inputs, &policy, &Tile::ALL).remove(0).data;
        R::round_all(&mut out, policy.output, policy.lambda);
        Ok(out)
    }
}
