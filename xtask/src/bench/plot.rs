//! Plots as SVG.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// Points of one colour, joined.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Lines over a common x axis; y from 0.
pub(super) fn lines(title: &str, x: &str, y: &str, lines: &[Line]) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, title, x, y, lines).map_err(|e| anyhow!("cannot draw {title}: {e}"))?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    title: &str,
    x: &str,
    y: &str,
    lines: &[Line],
) -> Result<(), Box<dyn std::error::Error>> {
    let all = || lines.iter().flat_map(|l| &l.points);
    let least = all().map(|p| p.0).fold(f64::INFINITY, f64::min);
    let most = all().map(|p| p.0).fold(f64::NEG_INFINITY, f64::max);
    let top = all().map(|p| p.1).fold(1e-9, f64::max) * 1.05;
    let area = SVGBackend::with_string(svg, (800, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(least..most.max(least + 1e-9), 0.0..top)?;
    chart.configure_mesh().x_desc(x).y_desc(y).draw()?;
    for (i, line) in lines.iter().enumerate() {
        let colour = Palette99::pick(i).to_rgba();
        let series = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2));
        let key = move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2));
        chart.draw_series(series)?.label(line.name.as_str()).legend(key);
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK)
        .position(SeriesLabelPosition::UpperRight)
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_is_svg_and_names_its_lines() {
        let line = Line { name: "ours".to_owned(), points: vec![(0.0, 1.0), (1.0, 2.0)] };
        let svg = lines("title", "level", "ratio", &[line]).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("ours") && svg.contains("level"));
    }
}
