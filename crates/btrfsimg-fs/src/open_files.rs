//! How many files may be open.

/// How many files this process may have open.
pub(crate) fn limit() -> usize {
    let soft = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    soft.and_then(|n| usize::try_from(n).ok()).unwrap_or(1024)
}
