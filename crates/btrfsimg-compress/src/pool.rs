//! Workspaces for many threads: taken, used, given back, and in the steady state never allocated.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::method::Method;
use crate::workspace::Workspace;

/// Hands out workspaces per method: the smallest idle one that is large enough, else a new one.
///
/// At most workers + 1 are kept idle; the one longest unused goes first, and one that nothing has asked for over
/// [`UNUSED_FOR`] hand-outs goes as well. With w threads and one method, at most w workspaces are ever allocated, and
/// none is given up: equal ones take turns.
#[derive(Debug)]
pub struct WorkspacePool {
    inner: Mutex<Inner>,
    max_idle: usize,
    probe: bool,
}

/// Hand-outs after which an idle workspace that took part in none of them is given up (512 MiB of full chunks).
pub const UNUSED_FOR: u64 = 4096;

/// Counters of a pool since it was made, and what it holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Workspaces allocated.
    pub allocated: u64,
    /// Times that an idle one was handed out instead.
    pub reused: u64,
    /// Bytes of memory in all workspaces, idle and handed out.
    pub bytes: usize,
    /// The most that `bytes` ever was.
    pub peak_bytes: usize,
    /// Workspaces idle now.
    pub idle: usize,
}

#[derive(Debug, Default)]
struct Inner {
    /// The longest unused first, each with how many had been handed out when it came back.
    idle: VecDeque<(Workspace, u64)>,
    stats: PoolStats,
}

impl Inner {
    fn add_bytes(&mut self, bytes: usize) {
        self.stats.bytes += bytes;
        self.stats.peak_bytes = self.stats.peak_bytes.max(self.stats.bytes);
    }

    fn take_smallest(&mut self, method: Method) -> Option<Workspace> {
        let fitting = self.idle.iter().enumerate();
        let fitting = fitting.filter_map(|(i, (workspace, _))| Some((workspace.surplus_for(method)?, i)));
        let (_, index) = fitting.min()?;
        self.idle.remove(index).map(|(workspace, _)| workspace)
    }

    fn handed_out(&self) -> u64 {
        self.stats.allocated + self.stats.reused
    }

    /// The longest unused, where there are too many or it is not needed.
    fn evict(&mut self, max_idle: usize) -> Option<Workspace> {
        let (_, since) = self.idle.front()?;
        let is_unused = self.handed_out() - since > UNUSED_FOR;
        if self.idle.len() <= max_idle && !is_unused {
            return None;
        }
        let (evicted, _) = self.idle.pop_front()?;
        self.stats.bytes = self.stats.bytes.saturating_sub(evicted.bytes());
        Some(evicted)
    }
}

impl PoolStats {
    /// The counters of both, for pools that were in use one after the other.
    pub fn and_then(self, next: PoolStats) -> PoolStats {
        PoolStats {
            allocated: self.allocated + next.allocated,
            reused: self.reused + next.reused,
            peak_bytes: self.peak_bytes.max(next.peak_bytes),
            ..next
        }
    }
}

impl WorkspacePool {
    /// A pool for `workers` threads, whose workspaces probe (see [`Workspace::with_probe`]).
    pub fn new(workers: usize) -> WorkspacePool {
        WorkspacePool { inner: Mutex::default(), max_idle: workers.saturating_add(1), probe: true }
    }

    /// As [`new`](Self::new), without the probe: every chunk is tried at the method's own cost.
    pub fn without_probe(workers: usize) -> WorkspacePool {
        WorkspacePool { probe: false, ..WorkspacePool::new(workers) }
    }

    /// The number of threads that it was made for.
    pub fn workers(&self) -> usize {
        self.max_idle - 1
    }

    /// A workspace for `method`; dropping it gives it back.
    pub fn get(&self, method: Method) -> PooledWorkspace<'_> {
        let idle = {
            let mut inner = self.lock();
            let idle = inner.take_smallest(method);
            inner.stats.reused += u64::from(idle.is_some());
            inner.stats.allocated += u64::from(idle.is_none());
            idle
        };
        let (mut workspace, counted) = match idle {
            Some(workspace) => {
                let bytes = workspace.bytes();
                (workspace, bytes)
            }
            None => (Workspace::new(method), 0),
        };
        workspace.retarget(method, self.probe);
        let bytes = workspace.bytes();
        self.account(counted, bytes);
        PooledWorkspace { pool: self, workspace: Some(workspace), counted: bytes }
    }

    /// The counters.
    pub fn stats(&self) -> PoolStats {
        let inner = self.lock();
        PoolStats { idle: inner.idle.len(), ..inner.stats }
    }

    fn account(&self, before: usize, now: usize) {
        if before != now {
            let mut inner = self.lock();
            inner.stats.bytes = inner.stats.bytes.saturating_sub(before);
            inner.add_bytes(now);
        }
    }

    fn give_back(&self, workspace: Workspace, counted: usize) {
        let now = workspace.bytes();
        self.account(counted, now);
        let mut inner = self.lock();
        let handed_out = inner.handed_out();
        inner.idle.push_back((workspace, handed_out));
        let evicted = inner.evict(self.max_idle);
        // Its memory goes back without the lock.
        drop(inner);
        drop(evicted);
    }

    /// A panic elsewhere leaves the list and the counters whole.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A workspace on loan from a [`WorkspacePool`].
#[derive(Debug)]
pub struct PooledWorkspace<'a> {
    pool: &'a WorkspacePool,
    /// `None` only while it is dropped.
    workspace: Option<Workspace>,
    counted: usize,
}

impl Deref for PooledWorkspace<'_> {
    type Target = Workspace;

    fn deref(&self) -> &Workspace {
        self.workspace.as_ref().expect("present until dropped")
    }
}

impl DerefMut for PooledWorkspace<'_> {
    fn deref_mut(&mut self) -> &mut Workspace {
        self.workspace.as_mut().expect("present until dropped")
    }
}

impl Drop for PooledWorkspace<'_> {
    fn drop(&mut self) {
        if let Some(workspace) = self.workspace.take() {
            self.pool.give_back(workspace, self.counted);
        }
    }
}
