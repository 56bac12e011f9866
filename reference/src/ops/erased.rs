//! [`Erased`]: any op behind one type, so that code generic over an op is compiled once for all of
//! them.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::{
    ArgSpec, Basis, Choice, Edit, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors,
    Tile, Visitor, visit,
};
use crate::arith::Real;
use crate::case::Case;
use crate::dtype::Rounding;
use crate::error::{Error, Result};
use crate::policy::Policy;

/// The op that its params name.
#[derive(Debug)]
pub struct Erased;

/// The params of some op.
#[derive(Clone)]
pub struct AnyParams {
    op: &'static str,
    params: Arc<dyn Any + Send + Sync>,
    equal: fn(&AnyParams, &AnyParams) -> bool,
    json: fn(&AnyParams) -> Value,
}

/// Params as JSON, with the op's name.
#[derive(Serialize, Deserialize)]
struct Named {
    op: String,
    params: Value,
}

impl Serialize for AnyParams {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        Named { op: self.op.into(), params: (self.json)(self) }.serialize(to)
    }
}

impl<'de> Deserialize<'de> for AnyParams {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        Named::deserialize(from)?.try_into().map_err(D::Error::custom)
    }
}

impl TryFrom<Named> for AnyParams {
    type Error = Error;

    fn try_from(named: Named) -> Result<AnyParams> {
        visit(&named.op, Parse(&named.params))
            .unwrap_or_else(|| Err(Error::Request(format!("unknown op `{}`", named.op))))
    }
}

struct Parse<'a>(&'a Value);

impl Visitor for Parse<'_> {
    type Out = Result<AnyParams>;

    fn visit<O: Op>(self) -> Self::Out {
        let params: O::Params = serde_json::from_value(self.0.clone())
            .map_err(|e| Error::arg(O::NAME, "params", format!("{e} in {}", self.0)))?;
        Ok(AnyParams::of::<O>(params))
    }
}

impl AnyParams {
    fn of<O: Op>(params: O::Params) -> AnyParams {
        AnyParams {
            op: O::NAME,
            params: Arc::new(params),
            equal: |a, b| a.get::<O>() == b.get::<O>(),
            json: |a| serde_json::to_value(a.get::<O>()).unwrap_or(Value::Null),
        }
    }

    fn get<O: Op>(&self) -> &O::Params {
        self.params.downcast_ref().expect("the params of the op that they name")
    }
}

impl PartialEq for AnyParams {
    fn eq(&self, other: &AnyParams) -> bool {
        self.op == other.op && (self.equal)(self, other)
    }
}

impl fmt::Debug for AnyParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.op, (self.json)(self))
    }
}

/// Does `visitor` with the op that params name.
fn with<V: Visitor>(params: &AnyParams, visitor: V) -> V::Out {
    visit(params.op, visitor).expect("params name a registered op")
}

/// The setup of the op itself.
fn own<O: Op>(setup: &Setup<Erased>) -> Setup<O> {
    Setup {
        params: setup.params.get::<O>().clone(),
        policy: setup.policy.clone(),
        tensors: setup.tensors.clone(),
    }
}

fn erase<O: Op>(setup: Setup<O>) -> Setup<Erased> {
    Setup { params: AnyParams::of::<O>(setup.params), policy: setup.policy, tensors: setup.tensors }
}

fn lift<O: Op>(edit: Edit<O>) -> Edit<Erased> {
    Arc::new(move |setup: &mut Setup<Erased>| {
        let mut inner = own::<O>(setup);
        edit(&mut inner);
        *setup = erase(inner);
    })
}

fn lift_faults<O: Op>(faults: Vec<Fault<O>>) -> Vec<Fault<Erased>> {
    let lifted = |f: Fault<O>| Fault {
        code: f.code,
        slug: f.slug,
        key: f.key,
        detail: f.detail,
        edit: lift(f.edit),
    };
    faults.into_iter().map(lifted).collect()
}

struct Check<'a>(&'a AnyParams, &'a Tensors);

impl Visitor for Check<'_> {
    type Out = Result<Vec<OutSpec>>;

    fn visit<O: Op>(self) -> Self::Out {
        O::check(self.0.get::<O>(), self.1)
    }
}

struct Eval<'a, 'i, R: Real>(&'a AnyParams, &'a Inputs<'i, R>, &'a Policy, &'a Tile);

impl<R: Real> Visitor for Eval<'_, '_, R> {
    type Out = Vec<Out<R>>;

    fn visit<O: Op>(self) -> Self::Out {
        O::eval(self.0.get::<O>(), self.1, self.2, self.3)
    }
}

struct Evaluate<'a, R>(&'a Setup<Erased>, &'a Tile, PhantomData<R>);

impl<R: Basis> Visitor for Evaluate<'_, R> {
    type Out = Vec<Out<R>>;

    fn visit<O: Op>(self) -> Self::Out {
        R::eval(O::NAME, &own::<O>(self.0), self.1)
    }
}

struct Knobs<'a>(&'a AnyParams);

impl Visitor for Knobs<'_> {
    type Out = Vec<Knob<Erased>>;

    fn visit<O: Op>(self) -> Self::Out {
        let choice = |c: Choice<O>| Choice {
            value: c.value,
            framework_only: c.framework_only,
            rare: c.rare,
            edit: lift(c.edit),
        };
        let knob = |k: Knob<O>| Knob {
            name: k.name,
            choices: k.choices.into_iter().map(choice).collect(),
        };
        O::knobs(self.0.get::<O>()).into_iter().map(knob).collect()
    }
}

struct Faults<'a>(&'a AnyParams, &'a Tensors);

impl Visitor for Faults<'_> {
    type Out = Vec<Fault<Erased>>;

    fn visit<O: Op>(self) -> Self::Out {
        lift_faults(O::faults(self.0.get::<O>(), self.1))
    }
}

struct Propose<'a, 'r>(&'a AnyParams, &'a Residual<'r>);

impl Visitor for Propose<'_, '_> {
    type Out = Vec<Fault<Erased>>;

    fn visit<O: Op>(self) -> Self::Out {
        lift_faults(O::propose(self.0.get::<O>(), self.1))
    }
}

struct Evidence<'a, 'r>(&'a AnyParams, &'a Residual<'r>);

impl Visitor for Evidence<'_, '_> {
    type Out = Vec<String>;

    fn visit<O: Op>(self) -> Self::Out {
        O::evidence(self.0.get::<O>(), self.1)
    }
}

struct ColumnsApart<'a>(&'a AnyParams);

impl Visitor for ColumnsApart<'_> {
    type Out = bool;

    fn visit<O: Op>(self) -> bool {
        O::columns_apart(self.0.get::<O>())
    }
}

struct Rounded<'a>(&'a AnyParams, &'a Policy, usize);

impl Visitor for Rounded<'_> {
    type Out = Rounding;

    fn visit<O: Op>(self) -> Self::Out {
        O::rounding(self.0.get::<O>(), self.1, self.2)
    }
}

struct Open<'a>(&'a Case);

impl Visitor for Open<'_> {
    type Out = Result<(Setup<Erased>, Vec<OutSpec>)>;

    fn visit<O: Op>(self) -> Self::Out {
        let (setup, outputs) = O::open(self.0)?;
        Ok((erase::<O>(setup), outputs))
    }
}

impl Op for Erased {
    const NAME: &'static str = "any";
    const SUMMARY: &'static str = "the op that its params name";
    const ARGS: &'static [ArgSpec] = &[];
    const POINTS: &'static [&'static str] = &[];
    type Params = AnyParams;

    fn name(params: &AnyParams) -> &'static str {
        params.op
    }

    fn parse(op: &str, params: &Value) -> Result<AnyParams> {
        Named { op: op.into(), params: params.clone() }.try_into()
    }

    fn open(case: &Case) -> Result<(Setup<Self>, Vec<OutSpec>)> {
        visit(&case.op, Open(case))
            .unwrap_or_else(|| Err(Error::Request(format!("unknown op `{}`", case.op))))
    }

    fn check(params: &AnyParams, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        with(params, Check(params, tensors))
    }

    fn eval<R: Real>(
        params: &AnyParams,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        with(params, Eval(params, inputs, policy, tile))
    }

    fn evaluate<R: Basis>(setup: &Setup<Self>, tile: &Tile) -> Vec<Out<R>> {
        with(&setup.params, Evaluate(setup, tile, PhantomData))
    }

    fn knobs(params: &AnyParams) -> Vec<Knob<Self>> {
        with(params, Knobs(params))
    }

    fn faults(params: &AnyParams, tensors: &Tensors) -> Vec<Fault<Self>> {
        with(params, Faults(params, tensors))
    }

    fn propose(params: &AnyParams, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        with(params, Propose(params, residual))
    }

    fn columns_apart(params: &AnyParams) -> bool {
        with(params, ColumnsApart(params))
    }

    fn evidence(params: &AnyParams, residual: &Residual<'_>) -> Vec<String> {
        with(params, Evidence(params, residual))
    }

    fn rounding(params: &AnyParams, policy: &Policy, index: usize) -> Rounding {
        with(params, Rounded(params, policy, index))
    }
}
