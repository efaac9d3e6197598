//! Prometheus' text format, version 0.0.4.
//!
//! Owns how families of the registries are written; numbers and escapes are spelled by `rubelet_stats::exposition`.

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};
use rubelet_stats::exposition::{push_escaped, push_head, push_number};

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
    push_head(text, name, kind, family.help());
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

#[expect(clippy::cast_precision_loss, reason = "as the format's own library has it")]
fn whole(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, HistogramVec, IntGaugeVec, Opts, Registry};
    use rubelet_testbed::metrics_text::MetricsText;

    use super::*;

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
