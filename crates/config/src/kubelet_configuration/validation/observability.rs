//! Rules about observability: logging, tracing, metrics, the log query.

use rubelet_model::address::url_scheme;

use super::Rules;
use crate::gates::Gate;
use crate::kubelet_configuration::logging::OutputRoutingOptions;

const MAX_VERBOSITY: u32 = i32::MAX as u32;
const MAX_SAMPLES_PER_MILLION: i64 = 1_000_000;
/// Hidden metrics of the minor version before this one may be shown, no others.
const PREVIOUS_MINOR_VERSION: &str = "1.36";

pub(super) fn check(rules: &mut Rules<'_>) {
    hidden_metrics(rules);
    logging(rules);
    vmodule(rules);
    tracing(rules);
    log_query(rules);
}

fn hidden_metrics(rules: &mut Rules<'_>) {
    let version = &rules.configuration.show_hidden_metrics_for_version;
    if !version.is_empty() && version != PREVIOUS_MINOR_VERSION {
        rules.refuse_text(
            "showHiddenMetricsForVersion",
            version,
            format!("must be empty or {PREVIOUS_MINOR_VERSION}"),
        );
    }
}

fn logging(rules: &mut Rules<'_>) {
    let logging = &rules.configuration.logging;
    let flush = logging.flush_frequency.duration;
    if flush.is_negative() || flush.is_zero() {
        rules.refuse("logging.flushFrequency", flush, "must be more than zero");
    }
    rules.one_of("logging.format", &logging.format, &["text", "json"]);
    if logging.format == "json" && !rules.enabled(Gate::LoggingBetaOptions) {
        rules.refuse_text(
            "logging.format",
            &logging.format,
            "needs the feature gate LoggingBetaOptions",
        );
    }
    if logging.verbosity > MAX_VERBOSITY {
        rules.refuse(
            "logging.verbosity",
            logging.verbosity,
            format!("must be at most {MAX_VERBOSITY}"),
        );
    }
    output_routing(rules, "logging.options.text", &logging.options.text);
    output_routing(rules, "logging.options.json", &logging.options.json);
}

fn output_routing(rules: &mut Rules<'_>, path: &str, options: &OutputRoutingOptions) {
    if rules.enabled(Gate::LoggingAlphaOptions) {
        return;
    }
    if options.split_stream {
        rules.refuse(
            format!("{path}.splitStream"),
            true,
            "needs the feature gate LoggingAlphaOptions",
        );
    }
    if options.info_buffer_size.value() != 0 {
        rules.refuse(
            format!("{path}.infoBufferSize"),
            &options.info_buffer_size,
            "needs the feature gate LoggingAlphaOptions",
        );
    }
}

fn vmodule(rules: &mut Rules<'_>) {
    let logging = &rules.configuration.logging;
    if !logging.vmodule.is_empty() && !matches!(logging.format.as_str(), "" | "text") {
        rules.refuse(
            "logging.vmodule",
            "the list",
            "may be set only while logging.format is text",
        );
    }
    for (position, item) in logging.vmodule.iter().enumerate() {
        let path = format!("logging.vmodule[{position}]");
        if item.file_pattern.is_empty() {
            rules.refuse_text(format!("{path}.filePattern"), "", "must not be empty");
        }
        if item.file_pattern.contains(['=', ',']) {
            rules.refuse_text(
                format!("{path}.filePattern"),
                &item.file_pattern,
                "must not have an equal sign or a comma",
            );
        }
        if item.verbosity > MAX_VERBOSITY {
            rules.refuse(
                format!("{path}.verbosity"),
                item.verbosity,
                format!("must be at most {MAX_VERBOSITY}"),
            );
        }
    }
}

fn tracing(rules: &mut Rules<'_>) {
    let Some(tracing) = &rules.configuration.tracing else {
        return;
    };
    if let Some(rate) = tracing.sampling_rate_per_million {
        rules.in_range(
            "tracing.samplingRatePerMillion",
            rate.into(),
            0,
            MAX_SAMPLES_PER_MILLION,
        );
    }
    let Some(endpoint) = &tracing.endpoint else { return };
    let url = if endpoint.contains("//") {
        endpoint.clone()
    } else {
        format!("dns://{endpoint}")
    };
    match url_scheme(&url) {
        Ok(scheme) if matches!(scheme.as_str(), "dns" | "unix" | "unix-abstract") => {}
        Ok(_) => rules.refuse_text(
            "tracing.endpoint",
            endpoint,
            "must have no scheme or one of dns, unix, unix-abstract",
        ),
        Err(error) => rules.refuse_text(
            "tracing.endpoint",
            endpoint,
            format!("must be host:port or a URL ({error})"),
        ),
    }
}

fn log_query(rules: &mut Rules<'_>) {
    let c = rules.configuration;
    if !c.enable_system_log_query.unwrap_or_default() {
        return;
    }
    if !rules.enabled(Gate::NodeLogQuery) {
        rules.refuse(
            "enableSystemLogQuery",
            true,
            "needs the feature gate NodeLogQuery",
        );
    }
    if !c.enable_system_log_handler.unwrap_or_default() {
        rules.refuse(
            "enableSystemLogQuery",
            true,
            "needs enableSystemLogHandler to be true",
        );
    }
}
