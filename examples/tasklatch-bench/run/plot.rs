//! Reports in a second against requests in flight, as a picture.

use plotters::prelude::*;

use super::design::LEVELS;
use super::results::{Results, Setting, per_second};
use crate::failure::{During, Failure, Result};

/// The size of the picture.
const SIZE: (u32, u32) = (960, 600);

/// What is drawn, by the name of its case, with its name in the picture.
const SERIES: [(&str, &str, RGBColor); 7] = [
    ("echo", "echo: stores nothing", RGBColor(0x77, 0x77, 0x77)),
    ("retries", "tasklatch: retries", RGBColor(0x56, 0xb4, 0xe9)),
    (
        "first",
        "tasklatch: first reports",
        RGBColor(0x00, 0x72, 0xb2),
    ),
    (
        "kv-whole",
        "JetStream buckets, not synced",
        RGBColor(0x00, 0x9e, 0x73),
    ),
    (
        "kv-create-always",
        "JetStream bucket, synced",
        RGBColor(0xe6, 0x9f, 0x00),
    ),
    (
        "per-report",
        "a transaction a report, Rust",
        RGBColor(0xd5, 0x5e, 0x00),
    ),
    (
        "python",
        "a transaction a report, Python",
        RGBColor(0xcc, 0x79, 0xa7),
    ),
];

/// Draws the picture as SVG.
///
/// # Errors
/// If there is nothing to draw.
pub fn svg(results: &Results) -> Result<String> {
    let series: Vec<Vec<(f64, f64)>> = SERIES
        .iter()
        .map(|(case, ..)| points(results, case))
        .collect();
    let rates = series.iter().flatten().map(|point| point.1);
    let most = rates.clone().fold(0.0, f64::max);
    let least = rates.fold(f64::INFINITY, f64::min);
    if most <= 0.0 {
        return Err(Failure::new(
            "there is nothing to plot: no design was measured",
        ));
    }
    let mut text = String::new();
    draw(&mut text, &series, least / 2.0, most * 2.0)
        .map_err(|error| error.to_string())
        .during("draw the plot")?;
    Ok(text)
}

fn points(results: &Results, case: &str) -> Vec<(f64, f64)> {
    let rate = |level: u32| {
        let wanted = |setting: &Setting| setting.case == case && setting.in_flight == level;
        let spread = results.spread(wanted, per_second)?;
        Some((f64::from(level), spread.median))
    };
    LEVELS.into_iter().filter_map(rate).collect()
}

fn draw(
    text: &mut String,
    series: &[Vec<(f64, f64)>],
    least: f64,
    most: f64,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Reports in a second", ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d(
            (0.8..1300.0).log_scale().base(4.0),
            (least..most).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("requests in flight")
        .x_label_formatter(&|level| format!("{level:.0}"))
        .y_label_formatter(&|rate| crate::figures::grouped(*rate))
        .label_style(("sans-serif", 14))
        .light_line_style(RGBColor(0xf0, 0xf0, 0xf0))
        .bold_line_style(RGBColor(0xd0, 0xd0, 0xd0))
        .draw()?;
    for ((_, name, color), points) in SERIES.iter().zip(series) {
        if points.is_empty() {
            continue;
        }
        let style = color.stroke_width(3);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
        chart.draw_series(
            points
                .iter()
                .map(|point| Circle::new(*point, 4, color.filled())),
        )?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(0xd0, 0xd0, 0xd0))
        .label_font(("sans-serif", 14))
        .draw()?;
    area.present()?;
    Ok(())
}
