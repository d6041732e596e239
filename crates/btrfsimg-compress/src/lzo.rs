//! The LZO1X-1 encoder, all of it: to use another one, change this file.
//!
//! minilzo-rs is used to encode only. Its decoders are not: one is unchecked, the other loses the output's
//! length. All decoding is lzokay's.

/// The encoder's crate, for `--version -v`.
pub(crate) const VERSION: &str = "minilzo-rs 0.6.1";

/// LZO1X-1 state: room for a dictionary of [`Encoder::BYTES`], of which the encoder uses 32 KiB.
pub(crate) struct Encoder(Box<minilzo_rs::LZO>);

impl Encoder {
    /// What the room for the dictionary takes in memory.
    pub(crate) const BYTES: usize = size_of::<minilzo_rs::LZO>();

    pub(crate) fn new() -> Encoder {
        // Fails only when the C library and its bindings disagree about the sizes of C types.
        Encoder(Box::new(minilzo_rs::LZO::init().expect("minilzo was built for this machine")))
    }

    /// One segment; its output has no length field. Never fails: the binding's buffer holds the worst case.
    ///
    /// The binding takes no buffer: it makes one for each segment (4.4 KiB, zeroed, for a sector). That is the one
    /// allocation of the steady state. It is little beside the dictionary, whose 32 KiB the encoder clears for each
    /// segment: about a third of the time that a sector takes.
    pub(crate) fn segment(&mut self, input: &[u8]) -> Vec<u8> {
        self.0.compress(input).expect("the output buffer holds the worst case")
    }
}

/// The most bytes that LZO1X makes of `n`, and two more that kernels with lzo-rle reserve (`format/04 §4.4`).
pub(crate) const fn worst_case(n: usize) -> usize {
    n + n / 16 + 64 + 3 + 2
}
