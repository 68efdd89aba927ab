//! Congestion control, as a device or a queue pair is told to do it.
//!
//! It is off unless somebody asks for it, as on Linux rxe: the window of a reliable connection then reacts to loss
//! alone. A device that controls congestion
//!
//! - *notifies*: a data packet that arrives marked "congestion experienced" is answered by a congestion notification
//!   packet (CNP), at most one per queue pair and interval;
//! - *reacts*: every connected queue pair has a rate, which falls and rises as the [`Algorithm`] has it, and its
//!   packets leave at that rate, in bursts. With an algorithm that listens to notifications they are ECN-capable
//!   (ECT(0)), so that switches mark them instead of dropping them.
//!
//! ```
//! use uroce::{congestion::Congestion, verbs::Device};
//!
//! let dcqcn: Congestion = "dcqcn rp_ai_rate=40 np_min_time_between_cnps=50".parse()?;
//! let device = Device::builder().congestion(dcqcn).build()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # As a text
//!
//! The setting `UROCE_CONGESTION` and the option `--congestion` are words, between spaces or commas: first the name of an
//! algorithm, `dcqcn` or `timely`; then, where wanted, `paper`, which begins with the parameters of the algorithm's paper
//! instead of mlx5's; then parameters, each NAME=VALUE. Parameters of the notification point and of DCQCN have mlx5's
//! names and units ([`NotificationParameters::set`], [`DcqcnParameters::set`]); those of TIMELY are named at
//! [`TimelyParameters::set`]. `off` is no congestion control.

pub use uroce_protocol::congestion::{
    Algorithm, CongestionControl, CongestionEvent, Dcqcn, DcqcnParameters, NotificationParameters, ParameterError,
    Rate, Timely, TimelyParameters,
};

use std::{fmt, str::FromStr, sync::Arc, time::Duration};
use thiserror::Error;

/// How a device or a queue pair controls congestion.
#[derive(Clone, Debug)]
pub struct Congestion {
    /// What decides on the rate.
    pub(crate) algorithm: Arc<dyn Algorithm>,
    /// How peers are notified.
    pub(crate) notification: NotificationParameters,
    /// How long a burst takes at a queue pair's rate; it never exceeds one train (64 KiB, one segmentation offload).
    /// Longer ones cost less processor time, shorter ones make shorter queues.
    pub(crate) pacing_burst: Duration,
    /// As it is written, if it was.
    text: Option<String>,
}

impl Congestion {
    /// How long bursts are unless somebody chooses: about as late as a thread that sleeps is woken.
    pub const PACING_BURST: Duration = Duration::from_micros(50);

    /// An algorithm, and notifications with mlx5's parameters.
    pub fn new(algorithm: impl Algorithm + 'static) -> Self {
        Self {
            algorithm: Arc::new(algorithm),
            notification: NotificationParameters::MLX5,
            pacing_burst: Self::PACING_BURST,
            text: None,
        }
    }

    /// The same, with other notifications.
    #[must_use]
    pub fn with_notification(mut self, notification: NotificationParameters) -> Self {
        self.notification = notification;
        self.text = None;
        self
    }

    /// The same, in bursts of another length.
    #[must_use]
    pub fn with_pacing_burst(mut self, burst: Duration) -> Self {
        self.pacing_burst = burst;
        self.text = None;
        self
    }

    /// Reads a text; `off` is `None`. The [module's documentation](self) has the grammar.
    ///
    /// # Errors
    /// The first word that makes no sense.
    pub fn parse_or_off(text: &str) -> Result<Option<Self>, CongestionError> {
        if text.trim() == "off" { Ok(None) } else { text.parse().map(Some) }
    }
}

/// Equal if they are written alike; those that were not written are equal to none.
impl PartialEq for Congestion {
    fn eq(&self, other: &Self) -> bool {
        self.text.is_some() && self.text == other.text
    }
}

/// As it was written, or the algorithm's name.
impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.as_deref().unwrap_or_else(|| self.algorithm.name()))
    }
}

/// A text that describes no congestion control.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CongestionError {
    /// It names no algorithm.
    #[error("congestion control is dcqcn, timely or off, not \"{0}\"")]
    Algorithm(String),
    /// A word is no parameter.
    #[error("\"{0}\" is no parameter: write paper, or NAME=NUMBER as in rp_ai_rate=40")]
    Word(String),
    /// A parameter does not exist or cannot have the value.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
}

impl FromStr for Congestion {
    type Err = CongestionError;

    fn from_str(text: &str) -> Result<Self, CongestionError> {
        let words: Vec<_> = text.split([' ', ',', '\t']).filter(|word| !word.is_empty()).collect();
        let name = words.first().copied().unwrap_or_default();
        let is_paper = words.get(1) == Some(&"paper");
        let mut notification = if is_paper { NotificationParameters::PAPER } else { NotificationParameters::MLX5 };
        let mut dcqcn = if is_paper { DcqcnParameters::PAPER } else { DcqcnParameters::MLX5 };
        let mut timely = TimelyParameters::PAPER;
        let is_dcqcn = match name {
            "dcqcn" => true,
            "timely" => false,
            _ => return Err(CongestionError::Algorithm(name.into())),
        };
        for word in words.iter().skip(if is_paper { 2 } else { 1 }) {
            let parameter = word.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
            let (name, value) = parameter.ok_or_else(|| CongestionError::Word((*word).into()))?;
            if name.starts_with("np_") {
                notification.set(name, value)?;
            } else if is_dcqcn {
                dcqcn.set(name, value)?;
            } else {
                timely.set(name, value)?;
            }
        }
        let algorithm: Arc<dyn Algorithm> = if is_dcqcn { Arc::new(dcqcn) } else { Arc::new(timely) };
        let text = Some(words.join(" "));
        Ok(Self { algorithm, notification, pacing_burst: Self::PACING_BURST, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_an_algorithm_and_its_parameters() {
        let congestion: Congestion = "dcqcn, rp_ai_rate=40  np_cnp_dscp=10".parse().unwrap();
        assert_eq!(congestion.to_string(), "dcqcn rp_ai_rate=40 np_cnp_dscp=10");
        assert_eq!(congestion.to_string().parse(), Ok(congestion.clone()));
        assert_eq!(congestion.notification.np_cnp_dscp, 10);
        let expected = DcqcnParameters { rp_ai_rate: Rate::from_mbps(40), ..DcqcnParameters::MLX5 };
        assert_eq!(format!("{:?}", congestion.algorithm), format!("{expected:?}"));

        let paper: Congestion = "dcqcn paper".parse().unwrap();
        assert_eq!(format!("{:?}", paper.algorithm), format!("{:?}", DcqcnParameters::PAPER));
        assert_eq!(paper.notification, NotificationParameters::PAPER);
        assert_eq!("timely t_low=20".parse::<Congestion>().unwrap().algorithm.name(), "timely");
        assert_eq!(Congestion::parse_or_off("off"), Ok(None));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, part) in [
            ("", "dcqcn, timely or off, not \"\""),
            ("bbr", "not \"bbr\""),
            ("dcqcn fast", "\"fast\" is no parameter"),
            ("dcqcn rp_ai_rate=x", "\"rp_ai_rate=x\" is no parameter"),
            ("dcqcn t_low=3", "there is no parameter t_low"),
            ("timely rp_gd=3", "there is no parameter rp_gd"),
            ("dcqcn rp_ai_rate=0", "0 is out of range for rp_ai_rate"),
        ] {
            let error = text.parse::<Congestion>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
