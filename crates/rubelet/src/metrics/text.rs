//! Prometheus' text format, version 0.0.4.
//!
//! Owns how it is written. Numbers are spelled as upstream's library spells them: the end of a bucket is a label, and a dashboard that
//! asks for `le="2.592e+06"` must find it.

use std::fmt::Write as _;

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

pub(super) fn render(families: &[MetricFamily]) -> String {
    let mut text = String::new();
    for family in families {
        write_family(&mut text, family);
    }
    text
}

fn write_family(text: &mut String, family: &MetricFamily) {
    let name = family.name();
    let kind = match family.get_field_type() {
        MetricType::COUNTER => "counter",
        MetricType::GAUGE => "gauge",
        MetricType::HISTOGRAM => "histogram",
        MetricType::SUMMARY => "summary",
        MetricType::UNTYPED => "untyped",
    };
    text.push_str("# HELP ");
    text.push_str(name);
    text.push(' ');
    push_escaped(text, family.help(), false);
    text.push_str("\n# TYPE ");
    text.push_str(name);
    text.push(' ');
    text.push_str(kind);
    text.push('\n');
    for metric in family.get_metric() {
        match family.get_field_type() {
            MetricType::COUNTER => {
                write_sample(text, (name, ""), metric, None, metric.get_counter().get_value());
            }
            MetricType::GAUGE | MetricType::UNTYPED => {
                write_sample(text, (name, ""), metric, None, metric.get_gauge().get_value());
            }
            MetricType::HISTOGRAM => write_histogram(text, name, metric),
            // Nothing here is a summary.
            MetricType::SUMMARY => {}
        }
    }
}

fn write_histogram(text: &mut String, name: &str, metric: &Metric) {
    let histogram = metric.get_histogram();
    let count = whole(histogram.get_sample_count());
    for bucket in histogram.get_bucket() {
        let end = bucket.upper_bound();
        if end.is_finite() {
            let count = whole(bucket.cumulative_count());
            write_sample(text, (name, "_bucket"), metric, Some(end), count);
        }
    }
    write_sample(text, (name, "_bucket"), metric, Some(f64::INFINITY), count);
    write_sample(text, (name, "_sum"), metric, None, histogram.get_sample_sum());
    write_sample(text, (name, "_count"), metric, None, count);
}

fn write_sample(
    text: &mut String,
    (name, ending): (&str, &str),
    metric: &Metric,
    bucket_end: Option<f64>,
    value: f64,
) {
    text.push_str(name);
    text.push_str(ending);
    write_labels(text, metric.get_label(), bucket_end);
    text.push(' ');
    push_number(text, value);
    text.push('\n');
}

fn write_labels(text: &mut String, labels: &[LabelPair], bucket_end: Option<f64>) {
    if labels.is_empty() && bucket_end.is_none() {
        return;
    }
    text.push('{');
    for (place, label) in labels.iter().enumerate() {
        if place > 0 {
            text.push(',');
        }
        text.push_str(label.name());
        text.push_str("=\"");
        push_escaped(text, label.value(), true);
        text.push('"');
    }
    if let Some(end) = bucket_end {
        if !labels.is_empty() {
            text.push(',');
        }
        text.push_str("le=\"");
        push_number(text, end);
        text.push('"');
    }
    text.push('}');
}

fn push_escaped(text: &mut String, plain: &str, in_quotes: bool) {
    for character in plain.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if in_quotes => text.push_str("\\\""),
            other => text.push(other),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "as the format's own library has it")]
fn whole(count: u64) -> f64 {
    count as f64
}

/// The shortest form that reads back as the same number, with an exponent below 1e-4 and from 1e6 on.
fn push_number(text: &mut String, value: f64) {
    if value.is_nan() {
        return text.push_str("NaN");
    }
    if value.is_infinite() {
        return text.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    }
    if value == 0.0 {
        return text.push('0');
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // Writing to a string does not fail.
    let _ = if (-4..6).contains(&exponent) {
        write!(text, "{value}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(text, "{digits}e{sign}{:02}", exponent.abs())
    };
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, HistogramVec, IntGaugeVec, Opts, Registry};
    use rubelet_testbed::metrics_text::MetricsText;

    use super::*;

    #[test]
    fn numbers_are_spelled_as_upstreams_are() {
        let check = |value: f64, expected: &str| {
            let mut text = String::new();
            push_number(&mut text, value);
            assert_eq!(text, expected);
        };
        check(0.0, "0");
        check(-0.0, "0");
        check(1.0, "1");
        check(-1.0, "-1");
        check(0.005, "0.005");
        check(0.0001, "0.0001");
        check(0.00001, "1e-05");
        check(0.000_012_5, "1.25e-05");
        check(124.5, "124.5");
        check(604_800.0, "604800");
        check(999_999.0, "999999");
        check(1_000_000.0, "1e+06");
        check(1_048_576.0, "1.048576e+06");
        check(2_592_000.0, "2.592e+06");
        check(-31_104_000.0, "-3.1104e+07");
        check(1.7e300, "1.7e+300");
        check(1_763_309_100.25, "1.76330910025e+09");
        check(18_446_744_073_709_551_615.0, "1.8446744073709552e+19");
        check(f64::INFINITY, "+Inf");
        check(f64::NEG_INFINITY, "-Inf");
        check(f64::NAN, "NaN");
    }

    #[test]
    fn a_page_reads_back_as_it_was_counted() {
        let registry = Registry::new();
        let durations = HistogramVec::new(
            HistogramOpts::new("d_seconds", "Seconds.").buckets(vec![0.5, 2_592_000.0]),
            &["operation"],
        )
        .unwrap();
        let gauges = IntGaugeVec::new(Opts::new("g", "A \\ and\na line."), &["name", "other"]).unwrap();
        registry.register(Box::new(durations.clone())).unwrap();
        registry.register(Box::new(gauges.clone())).unwrap();
        for seconds in [0.1, 0.7, 5_000_000.0] {
            durations.with_label_values(&["a"]).observe(seconds);
        }
        gauges.with_label_values(&["x\"y\\z\n", ""]).set(-7);
        let text = render(&registry.gather());
        let page = MetricsText::parse(&text).unwrap();
        assert_eq!(page.sum("d_seconds_bucket", &[("le", "0.5")]), Some(1.0));
        assert_eq!(page.sum("d_seconds_bucket", &[("le", "2.592e+06")]), Some(2.0));
        assert_eq!(page.sum("d_seconds_count", &[("operation", "a")]), Some(3.0));
        assert_eq!(page.sum("g", &[("name", "x\"y\\z\n")]), Some(-7.0));
        assert_eq!(page.family("g").unwrap().help, "A \\ and\na line.");
    }
}
