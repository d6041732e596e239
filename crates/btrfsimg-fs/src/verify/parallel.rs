//! Work on a list in runs, by several threads.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Calls `work` for ranges of at most `run` of `items` things, on up to `threads` threads; gives the results in
/// order.
pub(super) fn in_runs<T: Send>(
    threads: usize,
    items: usize,
    run: usize,
    work: impl Fn(Range<usize>) -> T + Sync,
) -> Vec<T> {
    let run = run.max(1);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.div_ceil(run)));
    let worker = || {
        loop {
            let at = next.fetch_add(run, Ordering::Relaxed);
            if at >= items {
                return;
            }
            let result = work(at..items.min(at.saturating_add(run)));
            done.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
        }
    };
    let helpers = items.div_ceil(run).min(threads).saturating_sub(1);
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            scope.spawn(worker);
        }
        worker();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
