//! Rows of a result, computed in parallel into memory that is written once.

use rayon::prelude::*;

use super::fenv::DefaultEnv;

/// `n` rows one after the other: `first`, which tells how long they are, and those that `row` gives.
pub(crate) fn stacked<T: Copy + Send + Sync>(
    first: Vec<T>,
    n: usize,
    row: &(dyn Fn(usize) -> Vec<T> + Sync),
) -> Vec<T> {
    let width = first.len();
    if n <= 1 || width == 0 {
        return first;
    }
    let mut data = first;
    data.reserve_exact((n - 1) * width);
    let room = &mut data.spare_capacity_mut()[..(n - 1) * width];
    room.par_chunks_exact_mut(width).enumerate().for_each(|(i, out)| {
        // Worker threads have an environment of their own.
        let _env = DefaultEnv::enter();
        out.write_copy_of_slice(&row(i + 1));
    });
    // SAFETY: every chunk was written from end to end; a row of another length has panicked.
    #[expect(unsafe_code, reason = "the length of a vector that was written in place")]
    unsafe {
        data.set_len(n * width);
    }
    data
}
