//! `inspect tree`.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result};
use btrfsimg_fs::Error;
use btrfsimg_fs::inspect::{self, BlockView, describe, parse_tree, tree_roots, walk_tree};
use btrfsimg_fs::read::Filesystem;
use btrfsimg_fs::tree::TreeRoot;
use btrfsimg_ondisk::{BlockContext, Key, Logical, ParentExpectation, objectid};
use serde_json::{Value, json};

use super::image_of;
use crate::address::ImageArgs;
use crate::exit::{CORRUPT, code_of_library, usage};
use crate::output::{SCHEMA_VERSION, Ui, begin_document, message, stdout};

/// Show the items of trees, one a line
///
/// An item that breaks a rule of the format is shown as ERROR with the rule, and the next ones follow. All trees are
/// shown when none is named.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  btrfsimg inspect tree -t fs out.img
  btrfsimg inspect tree -t 257 out.img
  btrfsimg inspect tree -b 30408704 out.img")]
pub(super) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Only this tree: its id, or a name such as fs, root, extent, chunk, dev, csum
    #[arg(short, long, value_name = "TREE", value_parser = tree_id, allow_hyphen_values = true)]
    tree: Option<u64>,
    /// Only the block at this logical address
    #[arg(short, long, value_name = "BLOCK", conflicts_with = "tree")]
    block: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The image
    #[arg(value_name = "IMAGE")]
    file: Option<OsString>,
}

fn tree_id(text: &str) -> Result<u64, String> {
    parse_tree(text)
        .ok_or_else(|| format!("no tree is called '{text}'; give its id, or a name such as fs or extent"))
}

pub(super) fn run(args: &Args, ui: &Ui) -> Result<()> {
    let path = image_of(&args.image, args.file.as_ref())?;
    let name = path.display().to_string();
    let image = args.image.salvage(&path, ui, code_of_library)?;
    let mut printer =
        Printer { ui, name, ctx: *image.fs.store().ctx(), json: args.json, is_first: true, out: stdout() };
    printer.begin()?;
    let ended = print_wanted(args, &image.fs, &mut printer);
    printer.end(ended.as_ref().err())?;
    ended
}

fn print_wanted<W: Write>(args: &Args, fs: &Filesystem, printer: &mut Printer<'_, W>) -> Result<()> {
    let Some(block) = args.block else { return print_trees(fs, args.tree, printer) };
    let name = printer.name.clone();
    if fs.store().chunks().lookup(Logical(block)).is_none() {
        let why = "is no tree block's address: no block group holds it; 'inspect tree -t chunk' lists them";
        return Err(usage(format!("{name}: {block} {why}")));
    }
    let view = inspect::block(fs, Logical(block), &ParentExpectation::default()).context(name)?;
    Ok(printer.block(&view)?)
}

fn print_trees<W: Write>(fs: &Filesystem, wanted: Option<u64>, printer: &mut Printer<'_, W>) -> Result<()> {
    let mut found = false;
    for root in tree_roots(fs).with_context(|| printer.name.clone())? {
        match root {
            Ok(root) if wanted.is_none_or(|t| t == root.tree) => {
                found = true;
                printer.tree(&root)?;
                walk_tree(fs, &root, &mut |view| {
                    let printed = match view {
                        Ok(view) => printer.block(&view),
                        Err(e) => printer.fault(&e.to_string()),
                    };
                    printed.map_err(Error::io("standard output"))
                })?;
            }
            Ok(_) => {}
            Err(e) => printer.fault(&e.to_string())?,
        }
    }
    match wanted {
        Some(tree) if !found => {
            Err(anyhow::Error::new(Error::NotFound(format!("tree {}", objectid::Printed(tree)))))
                .with_context(|| printer.name.clone())
        }
        _ => Ok(()),
    }
}

/// Prints blocks as they come: a whole dump is never in memory.
struct Printer<'a, W: Write> {
    ui: &'a Ui,
    name: String,
    ctx: BlockContext,
    json: bool,
    is_first: bool,
    out: W,
}

impl<W: Write> Printer<'_, W> {
    fn begin(&mut self) -> std::io::Result<()> {
        if self.json {
            begin_document();
            write!(self.out, "{{\"version\":{SCHEMA_VERSION},\"blocks\":[")?;
        }
        Ok(())
    }

    /// Ends the output, and the document with what ended it too early.
    fn end(mut self, error: Option<&anyhow::Error>) -> Result<()> {
        if self.json {
            let error = error.map(|e| format!(",\"error\":{}", Value::from(message(e))));
            writeln!(self.out, "\n]{}}}", error.unwrap_or_default())?;
        }
        self.out.flush()?;
        Ok(())
    }

    fn tree(&mut self, root: &TreeRoot) -> std::io::Result<()> {
        if self.json {
            return Ok(());
        }
        let TreeRoot { logical, level, generation, .. } = root;
        writeln!(self.out, "tree {} root {logical} level {level} generation {generation}", tree(root.tree))
    }

    /// A fault that belongs to no block.
    fn fault(&mut self, reason: &str) -> std::io::Result<()> {
        self.ui.fail(&format!("{}: {reason}", self.name), CORRUPT);
        if self.json { Ok(()) } else { writeln!(self.out, "ERROR {reason}") }
    }

    fn block(&mut self, view: &BlockView) -> std::io::Result<()> {
        if self.json {
            let value = self.json_block(view);
            write!(self.out, "{}\n{value}", if self.is_first { "" } else { "," })?;
            self.is_first = false;
            return Ok(());
        }
        let h = view.header();
        let kind = if h.level == 0 { "leaf" } else { "node" };
        writeln!(
            self.out,
            "{kind} {} level {} items {} generation {} owner {} flags 0x{:x}",
            view.logical,
            h.level,
            h.nritems,
            h.generation,
            tree(h.owner.get()),
            h.flags.get()
        )?;
        for fault in &view.faults {
            writeln!(self.out, "\tERROR {fault}")?;
            self.remember(view, fault);
        }
        for slot in 0..view.block.slots() {
            match self.slot(view, slot) {
                Ok((key, text)) if text.is_empty() => writeln!(self.out, "\t{slot} {key}")?,
                Ok((key, text)) => writeln!(self.out, "\t{slot} {key} {text}")?,
                Err((key, fault)) => writeln!(self.out, "\t{slot} {key} ERROR {fault}")?,
            }
        }
        Ok(())
    }

    /// What is in a slot, or what is wrong with it.
    fn slot(&self, view: &BlockView, slot: usize) -> Result<(Key, String), (Key, String)> {
        let key = view.block.key(slot).unwrap_or(Key::MAX);
        if view.header().level > 0 {
            let ptr =
                view.block.key_ptr(slot).map(|p| format!("block {} generation {}", p.block, p.generation));
            return Ok((key, ptr.unwrap_or_default()));
        }
        match view.block.item(slot, &self.ctx) {
            Some(Ok(item)) => Ok((key, describe(&item, &self.ctx))),
            Some(Err(fault)) => {
                self.remember(view, &fault);
                Err((key, format!("{} [{}]", fault.reason, fault.rule)))
            }
            None => Err((key, "no such slot".to_owned())),
        }
    }

    fn remember(&self, view: &BlockView, fault: &btrfsimg_ondisk::Violation) {
        let is_leaf = view.header().level == 0;
        let error = Error::corrupt_block(view.tree, view.logical, is_leaf, fault.clone());
        self.ui.fail_at(&self.name, &error);
    }

    fn json_block(&self, view: &BlockView) -> Value {
        let h = view.header();
        let items: Vec<Value> = (0..view.block.slots())
            .map(|slot| {
                let (key, field, text) = match self.slot(view, slot) {
                    Ok((key, text)) => (key, "text", text),
                    Err((key, fault)) => (key, "error", fault),
                };
                let (objectid, kind, offset) = (key.objectid, key.key_type.to_string(), key.offset);
                json!({ "slot": slot, "objectid": objectid, "type": kind, "offset": offset, field: text })
            })
            .collect();
        let faults: Vec<String> = view.faults.iter().map(ToString::to_string).collect();
        view.faults.iter().for_each(|fault| self.remember(view, fault));
        json!({
            "tree": view.tree, "logical": view.logical.0, "level": h.level, "nritems": h.nritems.get(),
            "generation": h.generation.get(), "owner": h.owner.get(), "flags": h.flags.get(),
            "faults": faults, "items": items,
        })
    }
}

fn tree(id: u64) -> String {
    match objectid::tree_name(id) {
        Some(name) => format!("{} ({name})", objectid::Printed(id)),
        None => objectid::Printed(id).to_string(),
    }
}
