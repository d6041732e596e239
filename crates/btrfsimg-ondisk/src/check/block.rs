//! Rules of headers and item tables: BLK-, NODE-, LEAF-.

use super::{BlockContext, Violation};
use crate::{FramedBlock, Logical, ParentExpectation};

/// Judges header, checksum, the parent's expectations, and the item table, in the kernel's order.
pub(crate) fn check_frame(
    block: &FramedBlock,
    logical: Logical,
    ctx: &BlockContext,
    expect: &ParentExpectation,
    sink: &mut dyn FnMut(Violation),
) {
    let _ = (block, logical, ctx, expect, sink);
}
