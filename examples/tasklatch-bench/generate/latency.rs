//! Latencies, kept exactly.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long answers took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half were faster.
    pub median_us: f64,
    /// Of ten, one took longer.
    pub p90_us: f64,
    /// Of a hundred, one took longer.
    pub p99_us: f64,
    /// Of a thousand, one took longer.
    pub p999_us: f64,
    /// None took longer.
    pub max_us: f64,
}

impl Latency {
    /// Of these, which it sorts.
    pub fn of(times: &mut [Duration]) -> Self {
        times.sort_unstable();
        let at = |share| percentile(times, share).as_secs_f64() * 1e6;
        Self {
            median_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: at(1.0),
        }
    }
}

/// The smallest of the sorted times that is not below this share of them; nothing of none.
fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let mut times: Vec<Duration> = (1..=1000).rev().map(Duration::from_micros).collect();
        let latency = Latency::of(&mut times);
        let expected = Latency {
            median_us: 500.0,
            p90_us: 900.0,
            p99_us: 990.0,
            p999_us: 999.0,
            max_us: 1000.0,
        };
        for (is, should) in [
            (latency.median_us, expected.median_us),
            (latency.p90_us, expected.p90_us),
            (latency.p99_us, expected.p99_us),
            (latency.p999_us, expected.p999_us),
            (latency.max_us, expected.max_us),
        ] {
            assert!((is - should).abs() < 1e-6, "{is} {should}");
        }
    }

    #[test]
    fn one_time_is_all_percentiles_and_no_time_is_none() {
        let one = Latency::of(&mut [Duration::from_micros(7)]);
        assert!((one.median_us - 7.0).abs() < 1e-9 && (one.max_us - 7.0).abs() < 1e-9);
        assert_eq!(Latency::of(&mut []), Latency::default());
    }
}
