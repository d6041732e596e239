//! The address newtypes. Mixing up a logical and a physical address must not compile.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<u64> for $name {
            fn from(raw: u64) -> Self {
                $name(raw)
            }
        }
    };
}

number! {
    /// An address in the file system's one flat logical space (the kernel's `bytenr`), in bytes.
    Logical
}
number! {
    /// An offset on a device, in bytes. Means something only together with a [`DevId`].
    Physical
}
number! {
    /// The id of the transaction that wrote a thing.
    Generation
}
number! {
    /// The number of an inode or of a tree (see [`crate::objectid`] for the well-known ones).
    ObjectId
}
number! {
    /// The number of a device within its file system, from 1.
    DevId
}

impl Logical {
    /// The address `bytes` further on, or `None` past the end of the space.
    pub fn checked_add(self, bytes: u64) -> Option<Logical> {
        self.0.checked_add(bytes).map(Logical)
    }
}

impl Physical {
    /// The offset `bytes` further on, or `None` past the end of the space.
    pub fn checked_add(self, bytes: u64) -> Option<Physical> {
        self.0.checked_add(bytes).map(Physical)
    }
}
