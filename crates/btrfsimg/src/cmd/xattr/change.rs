//! `xattr set` and `xattr rm`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use anyhow::Result;
use btrfsimg_fs::Error;
use btrfsimg_fs::write::setxattr::{removexattr, setxattr};

use super::value;
use crate::address::{Address, ImageArgs};
use crate::edit::{Edit, EditArgs, EditCx};
use crate::exit::usage;
use crate::output::shown;

/// Set an extended attribute
///
/// The name has its namespace: user., trusted., security., system.posix_acl_access, system.posix_acl_default, or
/// btrfs.compression. A value 0x… is hexadecimal, 0s… base64, all else text, also in double quotes. An access ACL sets
/// the mode that it stands for.
#[derive(clap::Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  btrfsimg xattr set out.img:/data user.origin 'build 7'
  btrfsimg xattr set out.img:/bin/ping security.capability 0sAQAAAgAgAAAAAAAAAAAAAAAAAAA=
  btrfsimg xattr set --value-file policy.bin out.img:/data trusted.policy"
)]
pub(super) struct SetArgs {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// Of a symlink itself, not of what it leads to
    #[arg(short = 'h', long = "no-dereference")]
    no_dereference: bool,
    /// Take the value from this file of the host
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    value_file: Option<PathBuf>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The file, as IMAGE:/path
    #[arg(value_name = "IMAGE:/PATH")]
    path: OsString,
    /// The attribute's name with its namespace
    name: OsString,
    /// Its value
    #[arg(required_unless_present = "value_file", allow_hyphen_values = true)]
    value: Option<OsString>,
}

impl Edit for SetArgs {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        if self.value_file.is_none() {
            self.value()?;
        }
        Ok(vec![image.address(&self.path)?])
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        let value = self.value()?;
        cx.each(|cx, address| {
            let place = cx.resolve(address, !self.no_dereference)?;
            setxattr(cx.tx, place, self.name.as_bytes(), &value)?;
            cx.say(|| format!("set {}={} of '{address}'", shown(self.name.as_bytes()), value::shown(&value)));
            Ok(())
        })
    }
}

impl SetArgs {
    fn value(&self) -> Result<Vec<u8>> {
        match (&self.value_file, &self.value) {
            (Some(file), _) => Ok(std::fs::read(file).map_err(Error::io(file.display().to_string()))?),
            (None, Some(value)) => value::parse(value.as_bytes()).map_err(usage),
            (None, None) => Err(usage("a value is missing")),
        }
    }
}

/// Remove extended attributes
#[derive(clap::Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  btrfsimg xattr rm out.img:/data user.origin user.note"
)]
pub(super) struct RmArgs {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: EditArgs,
    /// Of a symlink itself, not of what it leads to
    #[arg(short = 'h', long = "no-dereference")]
    no_dereference: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The file, as IMAGE:/path
    #[arg(value_name = "IMAGE:/PATH")]
    path: OsString,
    /// The attributes' names with their namespaces
    #[arg(required = true, value_name = "NAME")]
    names: Vec<OsString>,
}

impl Edit for RmArgs {
    fn options(&self) -> (&ImageArgs, &EditArgs) {
        (&self.image, &self.edit)
    }

    fn addresses(&self, image: &ImageArgs) -> Result<Vec<Address>> {
        Ok(vec![image.address(&self.path)?])
    }

    fn apply(&self, cx: &mut EditCx<'_, '_>) -> Result<()> {
        cx.each(|cx, address| {
            let place = cx.resolve(address, !self.no_dereference)?;
            self.names.iter().try_for_each(|name| {
                removexattr(cx.tx, place, name.as_bytes())?;
                cx.say(|| format!("removed {} of '{address}'", shown(name.as_bytes())));
                Ok(())
            })
        })
    }
}
