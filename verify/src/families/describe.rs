//! What each family is for, and which faults it separates from every legitimate convention.

use super::table::TABLE;

/// One family of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyInfo {
    /// Its name: `unit`.
    pub name: &'static str,
    /// What its cases are like.
    pub description: &'static str,
    /// The faults (by slug) of which its small cases show every key that applies to one of them: a
    /// subject that has one would pass on them under no convention.
    pub separates: &'static [&'static str],
}

/// The families of an op with what they separate; empty for an unknown op.
pub fn describe(op: &str) -> &'static [FamilyInfo] {
    TABLE.iter().find(|(name, _)| *name == op).map_or(&[], |(_, families)| families)
}
