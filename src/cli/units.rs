//! Sizes, durations and rates, as people type and read them.

use std::time::Duration;
use uroce_protocol::rc::MAX_MESSAGE_LENGTH;

/// A message size: `64`, `4K`, `1M`, `2G`; the suffixes are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.trim_end_matches(['B', 'b', 'i']).char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: u64 =
        digits.parse().map_err(|_| "a size is a number of bytes, with K, M or G behind it where wanted".to_owned())?;
    number
        .checked_mul(1 << shift)
        .filter(|&size| size <= MAX_MESSAGE_LENGTH)
        .ok_or_else(|| "a message holds at most 2G".to_owned())
}

/// A duration: `10` or `10s`, `500ms`, `2m`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = if let Some(digits) = text.strip_suffix("ms") {
        (digits, 1e-3)
    } else if let Some(digits) = text.strip_suffix('m') {
        (digits, 60.0)
    } else {
        (text.strip_suffix('s').unwrap_or(text), 1.0)
    };
    digits
        .parse::<f64>()
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number * unit).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "a duration is a number of seconds, or has ms, s or m behind it".to_owned())
}

/// A size as it reads best: `64 B`, `4 KiB`, `1.5 MiB`.
pub(crate) fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value.fract() < 0.05 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A count with thousands set apart: `1,234,567`.
pub(crate) fn format_count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate: `31.2 Gbit/s`, `840 Mbit/s`, `12 kbit/s`.
pub(crate) fn format_rate(bytes: u64, time: Duration) -> String {
    let bits = 8.0 * bytes as f64 / time.as_secs_f64().max(1e-9);
    match bits {
        _ if bits >= 1e9 => format!("{:.1} Gbit/s", bits / 1e9),
        _ if bits >= 1e6 => format!("{:.0} Mbit/s", bits / 1e6),
        _ => format!("{:.0} kbit/s", bits / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("64"), Ok(64));
        assert_eq!(parse_size("4k"), Ok(4096));
        assert_eq!(parse_size("4KiB"), Ok(4096));
        assert_eq!(parse_size("2G"), Ok(1 << 31));
        assert!(parse_size("3G").is_err());
        assert!(parse_size("99999999999999G").is_err());
        assert!(parse_size("K").is_err());
        assert!(parse_size("").is_err());
        assert!(parse_size("ä").is_err());
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(format_size(0), "0 B");
        assert_eq!(format_size(1023), "1023 B");
        assert_eq!(format_size(4096), "4 KiB");
        assert_eq!(format_size(3 << 19), "1.5 MiB");
        assert_eq!(format_size(200 * 1024 + 500), "200 KiB");
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "-1", "0", "NaN", "inf", "1e300", "s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_and_counts() {
        assert_eq!(format_rate(125_000_000, Duration::from_secs(1)), "1.0 Gbit/s");
        assert_eq!(format_rate(1000, Duration::from_secs(1)), "8 kbit/s");
        assert_eq!(format_count(999), "999");
        assert_eq!(format_count(1_234_567), "1,234,567");
    }
}
