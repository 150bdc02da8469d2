//! Plain line charts, one panel below the other.

use std::fmt;

const WIDTH: f64 = 900.0;
const PANEL: f64 = 220.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const GAP: f64 = 50.0;

pub struct Chart {
    pub title: String,
    pub x_axis: &'static str,
    pub panels: Vec<Panel>,
}

pub struct Panel {
    pub y_axis: &'static str,
    /// Points of each line.
    pub series: Vec<Vec<(f64, f64)>>,
}

impl Panel {
    fn max(&self, of: impl Fn(&(f64, f64)) -> f64) -> f64 {
        self.series.iter().flatten().map(of).fold(0.0, f64::max)
    }

    fn draw(&self, f: &mut fmt::Formatter<'_>, top: f64) -> fmt::Result {
        let (x_step, y_step) = (round_step(self.max(|p| p.0)), round_step(self.max(|p| p.1)));
        let (x_max, y_max) = (self.max(|p| p.0).max(x_step), (self.max(|p| p.1) / y_step).ceil().max(1.0) * y_step);
        let x = |value: f64| LEFT + value / x_max * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| top + PANEL - value / y_max * PANEL;
        for n in 0..=(y_max / y_step).round() as u32 {
            let value = f64::from(n) * y_step;
            let (at, right) = (y(value), WIDTH - RIGHT);
            writeln!(f, r##"<line x1="{LEFT}" y1="{at:.1}" x2="{right}" y2="{at:.1}" stroke="#ddd"/>"##)?;
            let (left, below, value) = (LEFT - 6.0, at + 4.0, (value * 1000.0).round() / 1000.0);
            writeln!(f, r#"<text x="{left}" y="{below:.1}" text-anchor="end">{value}</text>"#)?;
        }
        for n in 0..=(x_max / x_step).floor() as u32 {
            let value = f64::from(n) * x_step;
            let (at, below) = (x(value), top + PANEL + 16.0);
            writeln!(f, r#"<text x="{at:.1}" y="{below}" text-anchor="middle">{value}</text>"#)?;
        }
        let middle = top + PANEL / 2.0;
        writeln!(
            f,
            r#"<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">{}</text>"#,
            self.y_axis
        )?;
        for (n, line) in self.series.iter().enumerate() {
            let hue = n * 360 / self.series.len();
            write!(f, r#"<polyline fill="none" stroke="hsl({hue},70%,40%)" stroke-width="1" points=""#)?;
            for (px, py) in line {
                write!(f, "{:.1},{:.1} ", x(*px), y(*py))?;
            }
            writeln!(f, r#""/>"#)?;
        }
        Ok(())
    }
}

/// A step of 1, 2 or 5 times a power of ten, four to ten of which reach `max`.
fn round_step(max: f64) -> f64 {
    let power = 10f64.powf((max.max(1e-9) / 5.0).log10().floor());
    let steps = max / power;
    power
        * if steps <= 10.0 {
            1.0
        } else if steps <= 20.0 {
            2.0
        } else {
            5.0
        }
}

impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let height = TOP + self.panels.len() as f64 * (PANEL + GAP);
        writeln!(
            f,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">"#
        )?;
        writeln!(f, r##"<rect width="100%" height="100%" fill="#fff"/>"##)?;
        writeln!(f, r#"<text x="{LEFT}" y="22" font-size="15">{}</text>"#, self.title)?;
        for (n, panel) in self.panels.iter().enumerate() {
            panel.draw(f, TOP + n as f64 * (PANEL + GAP))?;
        }
        let (right, below) = (WIDTH - RIGHT, height - 12.0);
        writeln!(f, r#"<text x="{right}" y="{below}" text-anchor="end">{}</text>"#, self.x_axis)?;
        writeln!(f, "</svg>")
    }
}
