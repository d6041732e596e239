//! Changes of permission bits, as chmod(1) takes them: octal or symbolic.

/// What becomes of a mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModeChange(Vec<Step>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    op: Op,
    /// The bits that may be set.
    who: u32,
    /// The bits that an assignment clears first.
    clears: u32,
    /// The bits that are set or taken.
    bits: Bits,
    /// Bits of directories that an assignment leaves alone, unless they are named.
    named: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Add,
    Remove,
    Assign,
}

impl Op {
    fn parse(c: char) -> Option<Op> {
        match c {
            '+' => Some(Op::Add),
            '-' => Some(Op::Remove),
            '=' => Some(Op::Assign),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bits {
    /// These; with `X`, execution too where anybody has it, and for directories.
    These { bits: u32, exec_if_any: bool },
    /// Those of the owner (6), group (3), or others (0): how far they are shifted.
    CopyOf(u32),
}

const ALL: u32 = 0o7777;
const SET_IDS: u32 = 0o6000;
const STICKY: u32 = 0o1000;
/// What a mode without `u`, `g`, `o` or `a` leaves alone: the umask of this command, the same for everybody.
const UMASK: u32 = 0o022;

impl ModeChange {
    /// The change that `text` asks for.
    pub(crate) fn parse(text: &str) -> Result<ModeChange, String> {
        let wrong = || format!("'{text}' is no mode: octal up to 7777, or as in 'u=rwx,go+rX,+t'");
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let bits = parse_octal(text).ok_or_else(wrong)?;
            let named = if text.len() < 5 { bits & SET_IDS } else { SET_IDS };
            return Ok(ModeChange(vec![Step::octal(Op::Assign, bits, named)]));
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            parse_clause(clause, &mut steps).ok_or_else(wrong)?;
        }
        Ok(ModeChange(steps))
    }

    /// To the permission bits of `mode`, whatever there was.
    pub(crate) fn exactly(mode: u32) -> ModeChange {
        ModeChange(vec![Step::octal(Op::Assign, mode & ALL, SET_IDS)])
    }

    /// The permission bits that `mode` (with its type, or bits alone) becomes.
    pub(crate) fn apply(&self, mode: u32, is_dir: bool) -> u32 {
        self.0.iter().fold(mode & ALL, |mode, step| step.apply(mode, is_dir))
    }
}

fn parse_octal(text: &str) -> Option<u32> {
    let is_octal = text.starts_with(|c: char| c.is_ascii_digit());
    u32::from_str_radix(text, 8).ok().filter(|bits| is_octal && *bits <= ALL)
}

fn parse_clause(clause: &str, steps: &mut Vec<Step>) -> Option<()> {
    let at = clause.find(['+', '-', '='])?;
    let mut who = 0;
    for c in clause[..at].chars() {
        who |= match c {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => ALL,
            _ => return None,
        };
    }
    let (who, clears) = if who == 0 { (ALL & !UMASK, ALL) } else { (who, who) };
    let mut rest = &clause[at..];
    // '+111' and the like: all bits are named.
    if let Some(bits) = parse_octal(&rest[1..]).filter(|_| at == 0) {
        let op = Op::parse(rest.chars().next()?)?;
        steps.push(Step::octal(op, bits, SET_IDS));
        return Some(());
    }
    while let Some(op) = rest.chars().next() {
        let op = Op::parse(op)?;
        rest = &rest[1..];
        let end = rest.find(['+', '-', '=']).unwrap_or(rest.len());
        let (bits, named) = parse_bits(&rest[..end])?;
        steps.push(Step { op, who, clears, bits, named });
        rest = &rest[end..];
    }
    Some(())
}

fn parse_bits(text: &str) -> Option<(Bits, u32)> {
    match text {
        "u" => return Some((Bits::CopyOf(6), 0)),
        "g" => return Some((Bits::CopyOf(3), 0)),
        "o" => return Some((Bits::CopyOf(0), 0)),
        _ => {}
    }
    let (mut bits, mut exec_if_any) = (0, false);
    for c in text.chars() {
        match c {
            'r' => bits |= 0o444,
            'w' => bits |= 0o222,
            'x' => bits |= 0o111,
            'X' => exec_if_any = true,
            's' => bits |= SET_IDS,
            't' => bits |= STICKY,
            _ => return None,
        }
    }
    Some((Bits::These { bits, exec_if_any }, bits & SET_IDS))
}

impl Step {
    fn octal(op: Op, bits: u32, named: u32) -> Step {
        Step { op, who: ALL, clears: ALL, bits: Bits::These { bits, exec_if_any: false }, named }
    }

    fn apply(self, mode: u32, is_dir: bool) -> u32 {
        let bits = match self.bits {
            Bits::These { bits, exec_if_any } => {
                bits | if exec_if_any && (is_dir || mode & 0o111 != 0) { 0o111 } else { 0 }
            }
            Bits::CopyOf(shift) => (mode >> shift & 7) * 0o111,
        } & self.who;
        match self.op {
            Op::Add => mode | bits,
            Op::Remove => mode & !bits,
            Op::Assign => {
                let kept = if is_dir { SET_IDS & !self.named } else { 0 };
                mode & (!self.clears | kept) | bits
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_chmod_does_it() {
        // Mode before, the change, mode after for a file and for a directory: from GNU chmod 9.1, umask 022.
        let cases = [
            (0o644, "755", 0o755, 0o755),
            (0o2755, "700", 0o700, 0o2700),
            (0o2755, "00700", 0o700, 0o700),
            (0o2755, "4711", 0o4711, 0o6711),
            (0o600, "u+x", 0o700, 0o700),
            (0o600, "+x", 0o711, 0o711),
            (0o600, "+w", 0o600, 0o600),
            (0o600, "a+w", 0o622, 0o622),
            (0o640, "go=u", 0o666, 0o666),
            (0o644, "a+X", 0o644, 0o755),
            (0o744, "a+X", 0o755, 0o755),
            (0o755, "u+s,g+s,+t", 0o7755, 0o7755),
            (0o777, "u=rw,go=r", 0o644, 0o644),
            (0o6755, "u=rwx", 0o2755, 0o6755),
            (0o6755, "u-s", 0o2755, 0o2755),
            (0o751, "g-w+r=o", 0o711, 0o711),
            (0o777, "o=", 0o770, 0o770),
            (0o7777, "=", 0o0, 0o6000),
            (0o600, "+111", 0o711, 0o711),
            (0o6755, "=755", 0o755, 0o755),
            (0o777, "-022,u-s", 0o755, 0o755),
            (0o6711, "u=rwxs,g=s", 0o6701, 0o6701),
            (0o600, "a=rX", 0o444, 0o555),
            (0o1777, "-t", 0o777, 0o777),
            (0o644, "ug+s,o+t", 0o7644, 0o7644),
        ];
        for (mode, text, file, dir) in cases {
            let change = ModeChange::parse(text).unwrap();
            assert_eq!(change.apply(mode, false), file, "file {mode:o} {text}");
            assert_eq!(change.apply(mode, true), dir, "directory {mode:o} {text}");
        }
        for text in ["", "8", "17777", "u", "u+q", "z+x", "u+x,", "+rug", "u+11", "+8", "=17777", "++111"] {
            assert!(ModeChange::parse(text).is_err(), "{text}");
        }
    }
}
