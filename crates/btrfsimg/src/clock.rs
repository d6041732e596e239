//! When things happen: now, or SOURCE_DATE_EPOCH where images must be reproducible.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use btrfsimg_ondisk::Timespec;

use crate::exit::usage;

/// SOURCE_DATE_EPOCH, if it is set.
pub(crate) fn source_date_epoch() -> Result<Option<Timespec>> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else { return Ok(None) };
    let seconds = text.to_str().and_then(|t| t.parse::<i64>().ok());
    let seconds = seconds.ok_or_else(|| usage("SOURCE_DATE_EPOCH must be seconds since 1970, in decimal"))?;
    Ok(Some(Timespec::new(seconds, 0)))
}

/// The time of all that this run changes.
pub(crate) fn now() -> Result<Timespec> {
    if let Some(epoch) = source_date_epoch()? {
        return Ok(epoch);
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Timespec::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()))
}
