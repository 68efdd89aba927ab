//! The parameters of DCQCN's reaction point, under the names that mlx5 gives them.

use super::Rate;
use crate::time::Duration;
use thiserror::Error;

/// Why a parameter was not set.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParameterError {
    /// There is none of that name.
    #[error("there is no parameter {0}")]
    Unknown(String),
    /// The value makes no sense.
    #[error("{value} is out of range for {name}")]
    OutOfRange {
        /// The parameter.
        name: String,
        /// What it was to become.
        value: u64,
    },
}

/// How DCQCN's reaction point behaves, under mlx5's names (the files of its debugfs directory `cc_params`, Linux
/// drivers/infiniband/hw/mlx5/cong.c; meanings and defaults from NVIDIA's "DCQCN parameters").
///
/// Two sets are at hand: [`Self::MLX5`] and [`Self::PAPER`]. What both lay down and how one machine serves both is
/// said at [`super::Dcqcn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcqcnParameters {
    /// Every cut makes the rate before it the new target. Otherwise only a cut that follows an increase does, so
    /// that the target of a row of cuts is the rate before the first. mlx5: no; paper: yes.
    pub rp_clamp_tgt_rate: bool,
    /// Without [`Self::rp_clamp_tgt_rate`]: an increase by the timer counts as one, not only one by the byte counter.
    /// mlx5: yes.
    pub rp_clamp_tgt_rate_ati: bool,
    /// The time between two increases without a cut (the paper's T); zero turns the timer off. mlx5: 300 µs; paper:
    /// 55 µs.
    pub rp_time_reset: Duration,
    /// The bytes sent between two increases without a cut (the paper's B); 0 turns the counter off. mlx5: 32767
    /// units of 64 bytes; paper: 10 MB.
    pub rp_byte_reset: u64,
    /// How many increases by timer or byte counter end fast recovery, and by both active increase (the paper's F).
    /// mlx5: 1 (5 in older firmware); paper: 5.
    pub rp_threshold: u32,
    /// What active increase adds to the target (R_AI). mlx5: 5 Mbit/s; paper: 40 Mbit/s.
    pub rp_ai_rate: Rate,
    /// The port's rate for one flow, the line rate when 0. mlx5: 0.
    pub rp_max_rate: Rate,
    /// What hyper increase adds to the target, times the number of hyper increases (R_HAI). mlx5: 50 Mbit/s. The
    /// paper names no value: here ten times R_AI, as in mlx5 and in 802.1Qau.
    pub rp_hai_rate: Rate,
    /// No cut leaves less than this percentage of a rate. mlx5: 50. In the paper, too, a cut at most halves.
    pub rp_min_dec_fac: u8,
    /// The lowest rate. mlx5: 1 Mbit/s, and so here for the paper, which names none.
    pub rp_min_rate: Rate,
    /// What the first notification of a flow sets its rate to; 0: it cuts it as any other does. mlx5: 0.
    pub rp_rate_to_set_on_first_cnp: Rate,
    /// The weight of the old alpha in a new one, in 1024ths: 1024·(1-g) of the paper's g. mlx5: 1019; paper: 1020
    /// (g = 1/256).
    pub rp_dce_tcp_g: u16,
    /// After each such time without a notification alpha falls (the paper's K); zero: never. mlx5: 1 µs; paper: 55 µs.
    pub rp_dce_tcp_rtt: Duration,
    /// The least time between two cuts: a notification that comes sooner cuts when it is over. mlx5: 4 µs; paper: none.
    pub rp_rate_reduce_monitor_period: Duration,
    /// Alpha at a flow's first notification, in 1024ths. mlx5: 1023; paper: 1024.
    pub rp_initial_alpha_value: u16,
    /// A cut takes alpha, in 1024ths, over 2 to the power of this. mlx5: 11, which is the paper's alpha/2.
    pub rp_gd: u8,
}

impl DcqcnParameters {
    /// What mlx5 begins with.
    pub const MLX5: Self = Self {
        rp_clamp_tgt_rate: false,
        rp_clamp_tgt_rate_ati: true,
        rp_time_reset: Duration::from_micros(300),
        rp_byte_reset: 32767 * 64,
        rp_threshold: 1,
        rp_ai_rate: Rate::from_mbps(5),
        rp_max_rate: Rate::from_bps(0),
        rp_hai_rate: Rate::from_mbps(50),
        rp_min_dec_fac: 50,
        rp_min_rate: Rate::from_mbps(1),
        rp_rate_to_set_on_first_cnp: Rate::from_bps(0),
        rp_dce_tcp_g: 1019,
        rp_dce_tcp_rtt: Duration::from_micros(1),
        rp_rate_reduce_monitor_period: Duration::from_micros(4),
        rp_initial_alpha_value: 1023,
        rp_gd: 11,
    };

    /// What the DCQCN paper recommends (its section 5 and table 14), for links of 40 Gbit/s.
    pub const PAPER: Self = Self {
        rp_clamp_tgt_rate: true,
        rp_time_reset: Duration::from_micros(55),
        rp_byte_reset: 10_000_000,
        rp_threshold: 5,
        rp_ai_rate: Rate::from_mbps(40),
        rp_hai_rate: Rate::from_mbps(400),
        rp_dce_tcp_g: 1020,
        rp_dce_tcp_rtt: Duration::from_micros(55),
        rp_rate_reduce_monitor_period: Duration::ZERO,
        rp_initial_alpha_value: 1024,
        ..Self::MLX5
    };

    /// Sets the parameter that mlx5 calls `name` to a value in mlx5's unit: Mbit/s for rates, µs for times, 64 bytes
    /// for the byte counter. Values may go beyond what hardware's registers hold.
    ///
    /// # Errors
    /// When there is no such parameter, or the value makes no sense for it.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), ParameterError> {
        let out_of_range = || ParameterError::OutOfRange { name: name.into(), value };
        let within = |most: u64| if value <= most { Ok(value) } else { Err(out_of_range()) };
        let positive = |most: u64| if value > 0 { within(most) } else { Err(out_of_range()) };
        let flag = || within(1).map(|value| value == 1);
        // Up to a terabit per second.
        let rate = |value: u64| Rate::from_mbps(value);
        let micros = || within(u64::from(u32::MAX)).map(Duration::from_micros);
        match name {
            "rp_clamp_tgt_rate" => self.rp_clamp_tgt_rate = flag()?,
            "rp_clamp_tgt_rate_ati" => self.rp_clamp_tgt_rate_ati = flag()?,
            "rp_time_reset" => self.rp_time_reset = micros()?,
            "rp_byte_reset" => self.rp_byte_reset = within(u64::from(u32::MAX))? * 64,
            "rp_threshold" => self.rp_threshold = positive(1 << 16)? as u32,
            "rp_ai_rate" => self.rp_ai_rate = rate(positive(1_000_000)?),
            "rp_max_rate" => self.rp_max_rate = rate(within(1_000_000)?),
            "rp_hai_rate" => self.rp_hai_rate = rate(positive(1_000_000)?),
            "rp_min_dec_fac" => self.rp_min_dec_fac = positive(100)? as u8,
            "rp_min_rate" => self.rp_min_rate = rate(positive(1_000_000)?),
            "rp_rate_to_set_on_first_cnp" => self.rp_rate_to_set_on_first_cnp = rate(within(1_000_000)?),
            "rp_dce_tcp_g" => self.rp_dce_tcp_g = positive(1023)? as u16,
            "rp_dce_tcp_rtt" => self.rp_dce_tcp_rtt = micros()?,
            "rp_rate_reduce_monitor_period" => self.rp_rate_reduce_monitor_period = micros()?,
            "rp_initial_alpha_value" => self.rp_initial_alpha_value = positive(1024)? as u16,
            "rp_gd" => self.rp_gd = within(15)? as u8,
            _ => return Err(ParameterError::Unknown(name.into())),
        }
        Ok(())
    }
}

impl Default for DcqcnParameters {
    fn default() -> Self {
        Self::MLX5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From mlx5's defaults to the paper's values, each under mlx5's name and in its unit.
    #[test]
    fn parameters_have_mlx5s_names_and_units() {
        let mut parameters = DcqcnParameters::MLX5;
        for (name, value) in [
            ("rp_clamp_tgt_rate", 1),
            ("rp_clamp_tgt_rate_ati", 1),
            ("rp_time_reset", 55),
            ("rp_byte_reset", 156_250),
            ("rp_threshold", 5),
            ("rp_ai_rate", 40),
            ("rp_max_rate", 0),
            ("rp_hai_rate", 400),
            ("rp_min_dec_fac", 50),
            ("rp_min_rate", 1),
            ("rp_rate_to_set_on_first_cnp", 0),
            ("rp_dce_tcp_g", 1020),
            ("rp_dce_tcp_rtt", 55),
            ("rp_rate_reduce_monitor_period", 0),
            ("rp_initial_alpha_value", 1024),
            ("rp_gd", 11),
        ] {
            assert_eq!(parameters.set(name, value), Ok(()), "{name}");
        }
        assert_eq!(parameters, DcqcnParameters::PAPER);
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        let mut parameters = DcqcnParameters::MLX5;
        for (name, value) in [
            ("rp_clamp_tgt_rate", 2),
            ("rp_threshold", 0),
            ("rp_ai_rate", 0),
            ("rp_min_dec_fac", 0),
            ("rp_min_dec_fac", 101),
            ("rp_dce_tcp_g", 1024),
            ("rp_initial_alpha_value", 1025),
            ("rp_gd", 16),
        ] {
            assert_eq!(parameters.set(name, value), Err(ParameterError::OutOfRange { name: name.into(), value }));
        }
        let unknown = parameters.set("rpg_gd", 11).unwrap_err();
        assert_eq!(unknown.to_string(), "there is no parameter rpg_gd");
        assert_eq!(parameters, DcqcnParameters::MLX5);
    }
}
