//! Figures over several rounds.

use serde::{Deserialize, Serialize};

/// The median of some figures, and the least and the greatest of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The one in the middle, or the mean of the two that are.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Spread {
    /// Of these; `None` if there are none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => (sorted.get(middle.checked_sub(1)?)? + sorted.get(middle)?) / 2.0,
            _ => *sorted.get(middle)?,
        };
        Some(Self {
            median,
            least: *sorted.first()?,
            greatest: *sorted.last()?,
        })
    }
}

/// A number with three digits that matter, and not more than it needs: `0`, `0.172`, `1.84`, `25.3`, `48,200`.
pub fn short(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        size if size >= 999.5 => grouped(three_digits(number)),
        size if size >= 99.95 => format!("{number:.0}"),
        size if size >= 9.995 => format!("{number:.1}"),
        size if size >= 0.9995 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

fn three_digits(number: f64) -> f64 {
    let unit = 10_f64.powi(number.abs().log10().floor() as i32 - 2);
    (number / unit).round() * unit
}

/// A whole number with a comma before every three digits.
pub fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

/// A time in microseconds with its unit.
pub fn time(micros: f64) -> String {
    match micros {
        small if small < 999.5 => format!("{} µs", short(small)),
        middle if middle < 999_500.0 => format!("{} ms", short(middle / 1e3)),
        great => format!("{} s", short(great / 1e6)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_and_the_range_is_all_of_it() {
        let spread = |figures: &[f64]| Spread::of(figures.iter().copied());
        let of = |median, least, greatest| {
            Some(Spread {
                median,
                least,
                greatest,
            })
        };
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0]), of(3.0, 3.0, 3.0));
        assert_eq!(spread(&[9.0, 1.0, 2.0]), of(2.0, 1.0, 9.0));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 9.0]), of(3.0, 1.0, 9.0));
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> = [
            0.0,
            0.1719,
            1.844,
            9.996,
            25.31,
            321.4,
            999.6,
            48_234.0,
            1_234_567.0,
            -5_000.0,
        ]
        .into_iter()
        .map(short)
        .collect();
        assert_eq!(
            shown,
            [
                "0",
                "0.172",
                "1.84",
                "10.0",
                "25.3",
                "321",
                "1,000",
                "48,200",
                "1,230,000",
                "-5,000"
            ]
        );
        assert_eq!(
            [time(85.21), time(1_234.0), time(2_500_000.0)],
            ["85.2 µs", "1.23 ms", "2.50 s"]
        );
    }
}
