//! Work on a list in runs, by several threads.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
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

/// Results that a worker has ready before they are taken, at most.
const AHEAD: usize = 2;

/// Calls `work` with the numbers below `items` on `threads` threads, and `take` with each result on the calling one, in
/// order and as soon as those before it were taken. Memory is bounded: workers wait for `take`.
pub(super) fn in_order<T: Send>(
    threads: usize,
    items: usize,
    work: impl Fn(usize) -> T + Sync,
    take: impl FnMut(T),
) {
    let (threads, work) = (threads.min(items), &work);
    if threads <= 1 {
        return (0..items).map(work).for_each(take);
    }
    std::thread::scope(|scope| {
        let start = |first: usize| {
            let (sender, receiver) = sync_channel(AHEAD);
            scope.spawn(move || {
                // Nobody receives any more only where `take` panicked.
                (first..items).step_by(threads).try_for_each(|at| sender.send(work(at)))
            });
            receiver
        };
        let queues: Vec<Receiver<T>> = (0..threads).map(start).collect();
        queues.iter().cycle().take(items).map_while(|queue| queue.recv().ok()).for_each(take);
    });
}
