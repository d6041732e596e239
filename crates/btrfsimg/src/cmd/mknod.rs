//! `mknod`: devices, fifos and sockets.

use std::ffi::OsString;

use anyhow::Result;
use btrfsimg_fs::lookup::resolve_parent;
use btrfsimg_fs::write::attributes::chmod;
use btrfsimg_fs::write::create::create;
use btrfsimg_fs::write::inode::Attributes;
use btrfsimg_fs::write::names::{check_changeable, refuse_existing};

use crate::address::{Address, ImageArgs};
use crate::cmd::destination::refuse_slash;
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;
use crate::mode::ModeChange;
use crate::output::type_name;

/// Make a device, a fifo or a socket in an image
///
/// It belongs to 0:0 (in a setgid directory, to its group) with mode 0644, or as a default ACL says.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg mknod out.img:/dev/null c 1 3
  btrfsimg mknod -m 660 out.img:/dev/sda b 8 0
  btrfsimg mknod out.img:/run/pipe p")]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// Permission bits, octal or as in 'u=rw,go=r'
    #[arg(short, long, value_parser = ModeChange::parse)]
    mode: Option<ModeChange>,
    /// Its name, as IMAGE:/path
    #[arg(value_name = "IMAGE:/PATH")]
    path: OsString,
    /// b (block device), c or u (character device), p (fifo), s (socket)
    #[arg(value_name = "TYPE")]
    kind: String,
    /// Of devices: up to 4095
    major: Option<u64>,
    /// Of devices: up to 1048575
    minor: Option<u64>,
}

const MAJOR_MAX: u64 = 0xfff;
const MINOR_MAX: u64 = 0xf_ffff;

impl Args {
    /// Type bits and device number.
    fn node(&self) -> Result<(u32, u64)> {
        let (kind, is_device) = match self.kind.as_str() {
            "b" => (0o060_000, true),
            "c" | "u" => (0o020_000, true),
            "p" => (0o010_000, false),
            "s" => (0o140_000, false),
            other => return Err(usage(format!("'{other}' is no type; there are b, c, u, p and s"))),
        };
        match (is_device, self.major, self.minor) {
            (true, Some(major), Some(minor)) if major <= MAJOR_MAX && minor <= MINOR_MAX => {
                Ok((kind, major << 20 | minor))
            }
            (true, Some(_), Some(_)) => {
                Err(usage(format!("a device has a major up to {MAJOR_MAX} and a minor up to {MINOR_MAX}")))
            }
            (true, ..) => Err(usage("a device needs MAJOR and MINOR")),
            (false, None, None) => Ok((kind, 0)),
            (false, ..) => Err(usage("fifos and sockets have no MAJOR and MINOR")),
        }
    }
}

impl Edit for Args {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        self.node()?;
        Ok(vec![image.address(&self.path)?])
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        let (kind, rdev) = self.node()?;
        cx.each(|cx, address| {
            let shown = address.to_string();
            let (dir, name) = resolve_parent(cx.tx, cx.start, &address.path)?;
            refuse_existing(cx.tx, dir, name, &shown)?;
            refuse_slash(address)?;
            check_changeable(cx.tx, dir, &shown, false)?;
            let mut attributes = Attributes::new(kind | 0o666, cx.tx.now());
            (attributes.rdev, attributes.umask) = (rdev, 0o022);
            let place = create(cx.tx, dir, name, attributes, Vec::new())?;
            if let Some(mode) = &self.mode {
                chmod(cx.tx, place, mode.apply(0o666, false))?;
            }
            cx.say(|| format!("created {} '{address}'", type_name(kind, 0)));
            Ok(())
        })
    }
}
