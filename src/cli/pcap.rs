//! `uroce pcap`: look into packet captures.

use super::{COULD_NOT_RUN, FOUND_WRONG};
use anyhow::Context;
use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use std::{
    collections::BTreeMap,
    io::{self, BufWriter, Write},
    net::IpAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};
use uroce::capture::{CaptureError, CaptureReader, CapturedFrame, Dissection, Verdict};
use uroce_protocol::wire::{FrameError, Opcode, Qpn};

/// What to do with captures.
#[derive(Debug, Subcommand)]
pub(crate) enum PcapCommand {
    /// Print one line for every RoCE packet
    Show(ShowArgs),
    /// Check the ICRC of every RoCE packet, name the wrong ones, and count
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// A pcap or pcapng file
    file: PathBuf,
    /// Only packets to, or datagrams from, this queue pair; may be given several times
    #[arg(long, value_name = "QPN", value_parser = parse_qpn)]
    qp: Vec<Qpn>,
    /// Only packets of this opcode: a number such as 0x11, or words of a name, such as write or "rc send"
    #[arg(long, value_name = "OPCODE", value_parser = parse_opcode)]
    opcode: Option<OpcodeFilter>,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// pcap or pcapng files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Runs it.
pub(crate) fn run(command: &PcapCommand) -> anyhow::Result<ExitCode> {
    let mut out = BufWriter::new(io::stdout().lock());
    let code = match command {
        PcapCommand::Show(args) => show(args, &mut out)?,
        PcapCommand::Verify(args) => verify(&args.files, &mut out)?,
    };
    out.flush()?;
    Ok(code)
}

fn show(args: &ShowArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let mut start = None;
    let outcome = for_each_frame(&args.file, |frame| {
        let time = frame.timestamp.saturating_sub(*start.get_or_insert(frame.timestamp));
        match Dissection::segments(frame) {
            Ok(dissections) => dissections
                .filter(|dissection| args.wants(dissection))
                .try_for_each(|dissection| show_line(out, frame.number, time, &dissection)),
            Err(error) if error != FrameError::NotRoce && !args.filters() => {
                show_line(out, frame.number, time, &format_args!("? [{error}]"))
            }
            Err(_) => Ok(()),
        }
    })?;
    // What was read stands above what stopped it.
    out.flush()?;
    outcome.with_context(|| args.file.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

fn show_line(out: &mut impl Write, number: u64, time: Duration, what: &dyn std::fmt::Display) -> io::Result<()> {
    writeln!(out, "{number:>6} {:>11.6}  {what}", time.as_secs_f64())
}

impl ShowArgs {
    fn filters(&self) -> bool {
        !self.qp.is_empty() || self.opcode.is_some()
    }

    fn wants(&self, dissection: &Dissection<'_>) -> bool {
        let source = dissection.packet.ok().and_then(|packet| packet.deth()).map(|deth| deth.source);
        let of_qp = |qpn: &Qpn| dissection.destination() == *qpn || source == Some(*qpn);
        let opcode = dissection.frame.packet().first().copied();
        (self.qp.is_empty() || self.qp.iter().any(of_qp))
            && self.opcode.as_ref().is_none_or(|filter| opcode.is_some_and(|opcode| filter.0.contains(&opcode)))
    }
}

/// The opcodes that a filter lets through.
#[derive(Clone, Debug)]
struct OpcodeFilter(Vec<u8>);

fn parse_opcode(text: &str) -> Result<OpcodeFilter, String> {
    if let Some(number) = parse_number(text) {
        return u8::try_from(number).map(|byte| OpcodeFilter(vec![byte])).map_err(|_| "an opcode is a byte".to_owned());
    }
    // From the start of a word on, so that "rc" does not find XRC.
    let wanted = format!(" {}", text.to_lowercase());
    let is_wanted = |byte: &u8| {
        Opcode::from_byte(*byte).is_some_and(|opcode| format!(" {opcode}").to_lowercase().contains(&wanted))
    };
    let bytes: Vec<u8> = (0..=u8::MAX).filter(is_wanted).collect();
    if bytes.is_empty() { Err("no opcode has that in its name".to_owned()) } else { Ok(OpcodeFilter(bytes)) }
}

fn parse_qpn(text: &str) -> Result<Qpn, String> {
    let number = parse_number(text).filter(|&number| number == Qpn::new(number).value());
    number.map(Qpn::new).ok_or_else(|| "a queue pair number has 24 bits, such as 17 or 0x11".to_owned())
}

/// A decimal or 0x-prefixed number.
fn parse_number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// How many packets got which verdict.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    right: u64,
    wrong_icrc: u64,
    malformed: u64,
    incomplete: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.right += other.right;
        self.wrong_icrc += other.wrong_icrc;
        self.malformed += other.malformed;
        self.incomplete += other.incomplete;
    }

    fn packets(&self) -> u64 {
        self.right + self.wrong()
    }

    fn wrong(&self) -> u64 {
        self.wrong_icrc + self.malformed + self.incomplete
    }

    fn cells(&self) -> [String; 5] {
        [self.packets(), self.right, self.wrong_icrc, self.malformed, self.incomplete].map(|count| count.to_string())
    }
}

/// To whom packets go; `None` for those too incomplete to say.
type Receiver = Option<(IpAddr, Qpn)>;

fn verify(files: &[PathBuf], out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header([
        "File",
        "To",
        "QP",
        "Packets",
        "Right",
        "Wrong ICRC",
        "Malformed",
        "Incomplete",
    ]);
    let mut total = Counts::default();
    let mut unreadable = 0;
    for file in files {
        let mut receivers = BTreeMap::new();
        let outcome = for_each_frame(file, |frame| verify_frame(file, frame, &mut receivers, out))?;
        add_rows(&mut table, file, &receivers);
        receivers.values().for_each(|counts| total.add(*counts));
        if let Err(error) = outcome {
            // In order with the packets named so far.
            out.flush()?;
            eprintln!("uroce: {}: {error}", file.display());
            unreadable += 1;
        }
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    if table.row_count() > 0 {
        writeln!(out, "{table}")?;
    }
    let (packets, wrong) = (total.packets(), total.wrong());
    writeln!(
        out,
        "{} of {packets} RoCE packets in {} are right, {wrong} wrong",
        total.right,
        counted(files.len(), "file")
    )?;
    Ok(match (unreadable, wrong) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(FOUND_WRONG),
        _ => ExitCode::from(COULD_NOT_RUN),
    })
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

fn verify_frame(
    file: &Path,
    frame: &CapturedFrame<'_>,
    receivers: &mut BTreeMap<Receiver, Counts>,
    out: &mut impl Write,
) -> io::Result<()> {
    let dissections = match Dissection::segments(frame) {
        Ok(dissections) => dissections,
        Err(FrameError::NotRoce) => return Ok(()),
        Err(error) => {
            receivers.entry(None).or_default().incomplete += 1;
            return writeln!(out, "{}: frame {}: {error}", file.display(), frame.number);
        }
    };
    for dissection in dissections {
        let receiver = (dissection.frame.destination.to_canonical(), dissection.destination());
        let counts = receivers.entry(Some(receiver)).or_default();
        match dissection.verdict() {
            Verdict::Right => {
                counts.right += 1;
                continue;
            }
            Verdict::WrongIcrc(_) => counts.wrong_icrc += 1,
            Verdict::Malformed(_) => counts.malformed += 1,
        }
        write!(out, "{}: frame {}", file.display(), frame.number)?;
        if let Some(segment) = dissection.frame.segment {
            write!(out, ", segment {segment}")?;
        }
        writeln!(out, ": {dissection}")?;
    }
    Ok(())
}

fn add_rows(table: &mut Table, file: &Path, receivers: &BTreeMap<Receiver, Counts>) {
    let mut name = file.display().to_string();
    for (receiver, counts) in receivers {
        let (address, qpn) = match receiver {
            Some((address, qpn)) => (address.to_string(), qpn.to_string()),
            None => ("?".to_owned(), "?".to_owned()),
        };
        table.add_row([std::mem::take(&mut name), address, qpn].into_iter().chain(counts.cells()));
    }
}

/// Calls `visit` for every frame of a file. The outer result is what `visit` says, the inner one how reading went.
fn for_each_frame(
    file: &Path,
    mut visit: impl FnMut(&CapturedFrame<'_>) -> io::Result<()>,
) -> io::Result<Result<(), CaptureError>> {
    let mut reader = match CaptureReader::open(file) {
        Ok(reader) => reader,
        Err(error) => return Ok(Err(error)),
    };
    loop {
        match reader.next_frame() {
            Ok(Some(frame)) => visit(&frame)?,
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_found_by_number_and_by_words_of_their_name() {
        let filter = |text| parse_opcode(text).map(|filter| filter.0);
        assert_eq!(filter("0x11"), Ok(vec![0x11]));
        assert_eq!(filter("17"), Ok(vec![0x11]));
        assert_eq!(filter("rc read response"), Ok(vec![0x0d, 0x0e, 0x0f, 0x10]));
        assert_eq!(filter("CNP"), Ok(vec![0x81]));
        assert!(filter("0x100").is_err());
        assert!(filter("frobnicate").is_err());
    }

    #[test]
    fn queue_pair_numbers_have_24_bits() {
        assert_eq!(parse_qpn("0x11"), Ok(Qpn::new(17)));
        assert_eq!(parse_qpn("16777215"), Ok(Qpn::new(0xff_ffff)));
        assert!(parse_qpn("0x1000000").is_err());
        assert!(parse_qpn("-1").is_err());
    }
}
