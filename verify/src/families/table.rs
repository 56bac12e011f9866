//! The families' descriptions and what they separate, by op.

use super::FamilyInfo;

/// By op, in the order of their registration.
pub(super) const TABLE: &[(&str, &[FamilyInfo])] = &[];
