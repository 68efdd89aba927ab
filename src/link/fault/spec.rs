//! The little language of faults.

use std::{fmt, str::FromStr, time::Duration};
use thiserror::Error;
use uroce_protocol::{
    Psn,
    wire::{Operation, Packet, Qpn, Syndrome},
};

/// What is to go wrong: rules, each for itself, in the order written. The grammar is in the
/// [module's documentation](super).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultSpec {
    /// The rules.
    pub rules: Vec<Rule>,
}

/// Something that is to happen to some packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Which way the packets go.
    pub direction: Direction,
    /// What happens to them.
    pub action: Action,
    /// To which of those that match.
    pub occurrence: Occurrence,
    /// What kind of packet matches; `None` for all.
    pub kind: Option<Kind>,
    /// Which destination queue pair matches; `None` for all.
    pub qp: Option<Qpn>,
    /// Which sequence number matches; `None` for all.
    pub psn: Option<Psn>,
}

/// Which way a packet goes, seen from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It leaves.
    Tx,
    /// It arrives.
    Rx,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It vanishes.
    Drop,
    /// It goes on twice.
    Duplicate,
    /// One to four later packets for the same queue pair overtake it; where none follow, it goes on 1 ms later.
    Reorder,
    /// It goes on so much later.
    Delay(Duration),
    /// One bit of it, drawn at random, is inverted.
    Corrupt,
    /// Its IP header says "congestion experienced", whether it was ECN-capable or not.
    MarkCe,
}

/// Which of the packets that match a rule are hit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Occurrence {
    /// A share of them, drawn at random, in percent: 0.0 … 100.0.
    Percent(f64),
    /// The n-th alone, counted from 1.
    Nth(u64),
    /// The n-th, the 2n-th, and so on; 1 is all of them.
    Every(u64),
}

/// A kind of packet, by the name that the grammar gives it.
#[derive(Clone, Copy)]
pub struct Kind {
    name: &'static str,
    matches: fn(Operation, Option<Syndrome>) -> bool,
}

/// Why a text is no [`FaultSpec`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("fault rule \"{rule}\": {problem}")]
pub struct FaultSpecError {
    rule: String,
    problem: String,
}

macro_rules! kinds {
    ($($name:literal: $($operation:ident)|+,)+) => {
        &[$(Kind { name: $name, matches: |operation, _| matches!(operation, $(Operation::$operation)|+) },)+]
    };
}

impl Kind {
    const OPERATIONS: &'static [Self] = kinds! {
        "send": SendFirst | SendMiddle | SendLast | SendLastWithImmediate | SendLastWithInvalidate | SendOnly
            | SendOnlyWithImmediate | SendOnlyWithInvalidate,
        "send-first": SendFirst,
        "send-middle": SendMiddle,
        "send-last": SendLast | SendLastWithImmediate | SendLastWithInvalidate,
        "send-only": SendOnly | SendOnlyWithImmediate | SendOnlyWithInvalidate,
        "write": WriteFirst | WriteMiddle | WriteLast | WriteLastWithImmediate | WriteOnly | WriteOnlyWithImmediate,
        "write-first": WriteFirst,
        "write-middle": WriteMiddle,
        "write-last": WriteLast | WriteLastWithImmediate,
        "write-only": WriteOnly | WriteOnlyWithImmediate,
        "read-request": ReadRequest,
        "read-response": ReadResponseFirst | ReadResponseMiddle | ReadResponseLast | ReadResponseOnly,
        "read-response-first": ReadResponseFirst,
        "read-response-middle": ReadResponseMiddle,
        "read-response-last": ReadResponseLast,
        "read-response-only": ReadResponseOnly,
        "atomic": CompareSwap | FetchAdd,
        "cmp-swap": CompareSwap,
        "fetch-add": FetchAdd,
        "atomic-ack": AtomicAcknowledge,
        "flush": Flush,
        "atomic-write": AtomicWrite,
        "cnp": CongestionNotification,
    };

    /// An Acknowledge is told apart by its syndrome.
    const ACKNOWLEDGES: &'static [Self] = &[
        Self {
            name: "ack",
            matches: |operation, syndrome| acknowledges(operation, syndrome, |s| matches!(s, Syndrome::Ack(_))),
        },
        Self {
            name: "nak",
            matches: |operation, syndrome| acknowledges(operation, syndrome, |s| matches!(s, Syndrome::Nak(_))),
        },
        Self {
            name: "rnr-nak",
            matches: |operation, syndrome| acknowledges(operation, syndrome, |s| matches!(s, Syndrome::RnrNak(_))),
        },
    ];

    /// All kinds there are.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::OPERATIONS.iter().chain(Self::ACKNOWLEDGES).copied()
    }

    /// The kind that the grammar calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|kind| kind.name == name)
    }

    /// Its name in the grammar.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

fn acknowledges(operation: Operation, syndrome: Option<Syndrome>, which: fn(Syndrome) -> bool) -> bool {
    operation == Operation::Acknowledge && syndrome.is_some_and(which)
}

impl Rule {
    /// Whether the rule concerns `bytes` (BTH to ICRC). What is no packet concerns rules for all packets only.
    pub(super) fn matches(&self, packet: Option<&Packet<'_>>) -> bool {
        let Some(packet) = packet else {
            return self.kind.is_none() && self.qp.is_none() && self.psn.is_none();
        };
        self.qp.is_none_or(|qp| qp == packet.destination())
            && self.psn.is_none_or(|psn| psn == packet.psn())
            && self
                .kind
                .is_none_or(|kind| (kind.matches)(packet.opcode().operation(), packet.aeth().map(|aeth| aeth.syndrome)))
    }
}

impl FromStr for FaultSpec {
    type Err = FaultSpecError;

    fn from_str(text: &str) -> Result<Self, FaultSpecError> {
        let rules = text.split([',', ';', '\n']).map(str::trim).filter(|rule| !rule.is_empty());
        Ok(Self { rules: rules.map(str::parse).collect::<Result<_, _>>()? })
    }
}

impl FromStr for Rule {
    type Err = FaultSpecError;

    fn from_str(text: &str) -> Result<Self, FaultSpecError> {
        parse_rule(text).map_err(|problem| FaultSpecError { rule: text.to_owned(), problem })
    }
}

fn parse_rule(text: &str) -> Result<Rule, String> {
    let mut words = text.split_whitespace().peekable();
    let direction = match words.peek() {
        Some(&"rx") => Direction::Rx,
        _ => Direction::Tx,
    };
    words.next_if(|&word| matches!(word, "tx" | "rx"));
    let action = match words.next() {
        Some("drop") => Action::Drop,
        Some("duplicate" | "dup") => Action::Duplicate,
        Some("reorder") => Action::Reorder,
        Some("delay") => {
            Action::Delay(words.next().and_then(parse_duration).ok_or("say how long: delay 1ms, delay 250us")?)
        }
        Some("corrupt") => Action::Corrupt,
        Some("mark-ce") => Action::MarkCe,
        other => {
            return Err(format!(
                "it begins with {}, not with one of drop, duplicate, reorder, delay, corrupt, mark-ce (before which tx \
                 or rx may stand)",
                other.map_or("nothing".into(), |word| format!("\"{word}\""))
            ));
        }
    };
    let (mut occurrence, mut kind, mut qp, mut psn) = (None, None, None, None);
    while let Some(word) = words.next() {
        match word {
            "of" if words.peek() == Some(&"qp") => {}
            "every" => {
                let count = words.next().and_then(parse_number).filter(|&count| count > 0);
                once(&mut occurrence, Occurrence::Every(count.ok_or("say which: every 100")?), "count")?;
            }
            "qp" => {
                let number = words.next().and_then(parse_number).filter(|&number| number <= 0xff_ffff);
                once(&mut qp, Qpn::new(number.ok_or("say which queue pair: qp 17, qp 0x11")? as u32), "queue pair")?;
            }
            "psn" => {
                let number = words.next().and_then(parse_number).filter(|&number| number <= 0xff_ffff);
                once(&mut psn, Psn::new(number.ok_or("say which packet: psn 4096, psn 0x1000")? as u32), "psn")?;
            }
            _ => {
                if let Some(percent) = word.strip_suffix('%') {
                    let percent = percent.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
                    let percent = percent.ok_or_else(|| format!("\"{word}\" is no share between 0% and 100%"))?;
                    once(&mut occurrence, Occurrence::Percent(percent), "count")?;
                } else if let Some(number) = parse_number(word) {
                    if number == 0 {
                        return Err("packets are counted from 1".into());
                    }
                    once(&mut occurrence, Occurrence::Nth(number), "count")?;
                } else if let Some(found) = Kind::from_name(word) {
                    once(&mut kind, found, "kind of packet")?;
                } else {
                    let kinds: Vec<_> = Kind::all().map(|kind| kind.name).collect();
                    return Err(format!("\"{word}\" is neither a count nor a kind of packet: {}", kinds.join(", ")));
                }
            }
        }
    }
    if occurrence.is_none() && kind.is_none() && qp.is_none() && psn.is_none() {
        return Err("say which packets: 1%, every 100, ack 3, qp 17 (or 100%)".into());
    }
    Ok(Rule { direction, action, occurrence: occurrence.unwrap_or(Occurrence::Every(1)), kind, qp, psn })
}

fn once<T>(slot: &mut Option<T>, value: T, what: &str) -> Result<(), String> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("it names a {what} twice")),
    }
}

fn parse_number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

const UNITS: [(&str, u64); 5] = [("ns", 1), ("us", 1000), ("µs", 1000), ("ms", 1_000_000), ("s", 1_000_000_000)];

fn parse_duration(word: &str) -> Option<Duration> {
    let (unit, nanos) = UNITS.into_iter().find(|(unit, _)| {
        word.strip_suffix(unit).is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
    })?;
    let count: u64 = word.strip_suffix(unit)?.parse().ok()?;
    Some(Duration::from_nanos(count.checked_mul(nanos)?))
}

impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rule) in self.rules.iter().enumerate() {
            write!(f, "{}{rule}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.direction == Direction::Rx {
            f.write_str("rx ")?;
        }
        write!(f, "{}", self.action)?;
        if let Some(kind) = self.kind {
            write!(f, " {}", kind.name)?;
        }
        match self.occurrence {
            Occurrence::Percent(percent) => write!(f, " {percent}%")?,
            Occurrence::Nth(count) => write!(f, " {count}")?,
            Occurrence::Every(1) if self.kind.is_some() || self.qp.is_some() || self.psn.is_some() => {}
            Occurrence::Every(count) => write!(f, " every {count}")?,
        }
        if let Some(qp) = self.qp {
            write!(f, " of qp {}", qp.value())?;
        }
        if let Some(psn) = self.psn {
            write!(f, " psn {}", psn.value())?;
        }
        Ok(())
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Duplicate => f.write_str("duplicate"),
            Self::Reorder => f.write_str("reorder"),
            Self::Delay(duration) => {
                let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
                let (unit, size) =
                    UNITS.into_iter().rev().find(|(_, size)| nanos % size == 0 && nanos > 0).unwrap_or(UNITS[0]);
                write!(f, "delay {}{unit}", nanos / size)
            }
            Self::Corrupt => f.write_str("corrupt"),
            Self::MarkCe => f.write_str("mark-ce"),
        }
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Kind {}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kind({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    #[test]
    fn rules_say_what_they_look_like() {
        let everything = Rule {
            direction: Direction::Tx,
            action: Action::Drop,
            occurrence: Occurrence::Percent(1.0),
            kind: None,
            qp: None,
            psn: None,
        };
        assert_eq!(rule("drop 1%"), everything);
        assert_eq!(rule("tx drop 1%"), everything);
        assert_eq!(rule("rx drop 1%"), Rule { direction: Direction::Rx, ..everything.clone() });
        assert_eq!(
            rule("dup every 10 ack"),
            Rule {
                action: Action::Duplicate,
                occurrence: Occurrence::Every(10),
                kind: Kind::from_name("ack"),
                ..everything.clone()
            }
        );
        assert_eq!(
            rule("drop read-response 3 of qp 17"),
            Rule {
                occurrence: Occurrence::Nth(3),
                kind: Kind::from_name("read-response"),
                qp: Some(Qpn::new(17)),
                ..everything.clone()
            }
        );
        assert_eq!(
            rule("delay 250us psn 0x10 qp 0x11"),
            Rule {
                action: Action::Delay(Duration::from_micros(250)),
                occurrence: Occurrence::Every(1),
                qp: Some(Qpn::new(17)),
                psn: Some(Psn::new(16)),
                ..everything
            }
        );
    }

    #[test]
    fn a_spec_is_rules_between_commas_semicolons_or_lines() {
        let spec: FaultSpec = "drop 1%, dup 0.5%; rx reorder 1%\n\n mark-ce 5%,".parse().unwrap();
        assert_eq!(spec.to_string(), "drop 1%, duplicate 0.5%, rx reorder 1%, mark-ce 5%");
        assert_eq!("".parse::<FaultSpec>().unwrap(), FaultSpec::default());
    }

    #[test]
    fn errors_say_what_and_how_to_mend() {
        for (text, part) in [
            ("dorp 1%", "begins with \"dorp\", not with one of drop, duplicate"),
            ("rx", "begins with nothing"),
            ("drop", "say which packets: 1%"),
            ("drop 101%", "\"101%\" is no share between 0% and 100%"),
            ("drop NaN%", "no share"),
            ("drop 0 ack", "counted from 1"),
            ("drop every 0", "say which: every 100"),
            ("drop 1% 2%", "names a count twice"),
            ("drop ack nak", "names a kind of packet twice"),
            ("drop sned", "\"sned\" is neither a count nor a kind of packet: send, send-first"),
            ("drop qp 0x1000000", "say which queue pair"),
            ("drop psn x", "say which packet"),
            ("delay 1%", "say how long"),
            ("delay 99999999999s 1%", "say how long"),
        ] {
            let error = text.parse::<FaultSpec>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn only_the_rule_that_is_wrong_is_quoted() {
        let error = "drop 1%, drop 2 apples".parse::<FaultSpec>().unwrap_err();
        assert!(error.to_string().starts_with("fault rule \"drop 2 apples\": \"apples\" is"), "{error}");
    }

    fn rules() -> impl Strategy<Value = Rule> {
        let action = prop_oneof![
            Just(Action::Drop),
            Just(Action::Duplicate),
            Just(Action::Reorder),
            Just(Action::Corrupt),
            Just(Action::MarkCe),
            any::<u64>().prop_map(|nanos| Action::Delay(Duration::from_nanos(nanos))),
            (0..100_u64).prop_map(|millis| Action::Delay(Duration::from_millis(millis))),
        ];
        let occurrence = prop_oneof![
            (0.0..=100.0).prop_map(Occurrence::Percent),
            (1..u64::MAX).prop_map(Occurrence::Nth),
            (1..u64::MAX).prop_map(Occurrence::Every),
            Just(Occurrence::Every(1)),
        ];
        let kind = proptest::sample::select(Kind::all().collect::<Vec<_>>());
        let direction = prop_oneof![Just(Direction::Tx), Just(Direction::Rx)];
        let number = proptest::option::of(0_u32..1 << 24);
        (direction, action, occurrence, proptest::option::of(kind), number.clone(), number).prop_map(
            |(direction, action, occurrence, kind, qp, psn)| Rule {
                direction,
                action,
                occurrence,
                kind,
                qp: qp.map(Qpn::new),
                psn: psn.map(Psn::new),
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_to_the_same(rules in prop::collection::vec(rules(), 0..5)) {
            let spec = FaultSpec { rules };
            prop_assert_eq!(spec.to_string().parse::<FaultSpec>(), Ok(spec));
        }

        #[test]
        fn no_text_panics(text in "([a-z0-9%., -]|drop |qp |every |µs){0,40}") {
            let _ = text.parse::<FaultSpec>();
        }
    }
}
