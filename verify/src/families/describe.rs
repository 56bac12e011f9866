//! What each family is for, and which faults it separates from every legitimate convention.

/// One family of an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyInfo {
    /// Its name: `unit`.
    pub name: &'static str,
    /// What its cases are like.
    pub description: &'static str,
    /// The faults (by slug) of which its small cases show every key that applies to one of them: a
    /// subject that has one would pass on them under no convention.
    pub separates: Vec<&'static str>,
}

/// An op without indentation, its families by two spaces, their faults by four.
const TABLE: &str = include_str!("separates.txt");

/// The families of an op with what they separate; empty for an unknown op.
pub fn describe(op: &str) -> Vec<FamilyInfo> {
    let lines = TABLE.lines().skip_while(|line| *line != op).skip(1);
    let mut families: Vec<FamilyInfo> = Vec::new();
    for line in lines.take_while(|line| line.starts_with(' ')) {
        let text = line.trim_start();
        match (text.split_once(": "), families.last_mut()) {
            (Some((name, description)), _) => {
                families.push(FamilyInfo { name, description, separates: Vec::new() });
            }
            (None, Some(family)) => family.separates.extend(text.split_whitespace()),
            (None, None) => {}
        }
    }
    families
}

/// Faults that give what some legitimate implementation gives, on every case.
#[derive(Clone, Copy, Debug)]
pub struct Coincide {
    /// The op.
    pub op: &'static str,
    /// The fault.
    pub slug: &'static str,
    /// The choice under which that is so; `None`: always. Then no family shows the fault, and no pass is
    /// limited by it.
    pub under: Option<&'static str>,
    /// The reason.
    pub why: &'static str,
}

/// All of them.
pub const COINCIDE: &[Coincide] = &[
    always("rope", "ties_away_store", ROTATED),
    always("qk_norm_rope", "ties_away_store", ROTATED),
    always("softmax", "ties_away_store", DIVIDED),
    always("silu_mul", "ties_away_store", DIVIDED),
    always("moe_experts", "ties_away_store", BLURRED),
    always("attention", "ties_away_store", DIVIDED),
    always("attention_paged", "ties_away_store", DIVIDED),
    Coincide {
        op: "fp8_gemm",
        slug: "ties_away_store",
        under: Some("activations=fp8"),
        why: DIVIDED,
    },
];

const fn always(op: &'static str, slug: &'static str, why: &'static str) -> Coincide {
    Coincide { op, slug, under: None, why }
}

const ROTATED: &str =
    "but for position 0, which turns nothing, no product is half-way between two numbers";
const DIVIDED: &str =
    "behind a division, which devices do by an approximate reciprocal, no tie is exact";
const BLURRED: &str = "the convention that keeps the gate's activation in f32 leaves no tie exact";
