use super::*;

fn page(text: &str) -> MetricsText {
    MetricsText::parse(text).unwrap_or_else(|error| panic!("{error:#}"))
}

const GOOD: &str = "\
# HELP a_total Things, with \\\\ and \\n in it.
# TYPE a_total counter
a_total{k=\"v\\\"w\\\\\\n\",other=\"\"} 3
a_total{k=\"x\",other=\"y\"} 1.5e+06
# HELP b Seconds.
# TYPE b histogram
b_bucket{le=\"0.5\"} 1
b_bucket{le=\"2.592e+06\"} 3
b_bucket{le=\"+Inf\"} 4
b_sum 12.5
b_count 4
# HELP c One.
# TYPE c gauge
c +Inf
";

#[test]
fn a_good_page_is_understood() {
    let page = page(GOOD);
    let family = page.family("a_total").unwrap();
    assert_eq!(family.help, "Things, with \\ and \n in it.");
    assert_eq!(family.kind, Kind::Counter);
    assert_eq!(family.label_names(), ["k", "other"].into());
    assert_eq!(family.samples[0].labels["k"], "v\"w\\\n");
    assert_eq!(page.sum("a_total", &[("k", "x")]), Some(1_500_000.0));
    assert_eq!(page.sum("a_total", &[]), Some(1_500_003.0));
    assert_eq!(page.sum("b_count", &[]), Some(4.0));
    assert_eq!(page.sum("nothing", &[]), None);
    assert_eq!(page.family("b").unwrap().buckets(), ["0.5", "2.592e+06", "+Inf"]);
    assert!(page.family("b").unwrap().label_names().is_empty());
    assert_eq!(page.sum("c", &[]), Some(f64::INFINITY));
}

#[test]
fn a_sample_may_have_a_time_of_its_own() {
    let page = page("# HELP g x\n# TYPE g gauge\ng{a=\"1\"} 1 1763495289123\ng{a=\"2\"} 2\n");
    let times: Vec<Option<i64>> = page.families["g"]
        .samples
        .iter()
        .map(|sample| sample.time_ms)
        .collect();
    assert_eq!(times, [Some(1_763_495_289_123), None]);
}

#[test]
fn what_a_collector_could_misread_is_refused() {
    let check = |text: &str, expected: &str| {
        let error = match MetricsText::parse(text) {
            Ok(page) => panic!("{text} was taken as {page:?}"),
            Err(error) => format!("{error:#}"),
        };
        assert!(error.contains(expected), "{error}");
    };
    let gauge = "# HELP g x\n# TYPE g gauge\n";
    check("# HELP g x\n# TYPE g gauge\ng 1", "the last line has no end");
    check("g 1\n", "a sample before any HELP");
    check("# TYPE g gauge\ng 1\n", "without its HELP");
    check("# HELP g x\ng 1\n", "a sample before the TYPE");
    check("# HELP g x\n", "has no TYPE");
    check(gauge, "no samples");
    check(
        &format!("{gauge}g 1\n# HELP h x\n# TYPE h gauge\nh 1\n{gauge}g 2\n"),
        "was there before",
    );
    check(&format!("{gauge}# TYPE g gauge\ng 1\n"), "has two types");
    check(&format!("{gauge}g 1\ng 1\n"), "is there twice");
    check(&format!("{gauge}g{{a=\"1\"}} 1\ng 1\n"), "different labels");
    check(&format!("{gauge}h 1\n"), "does not belong here");
    check(&format!("{gauge}g{{a=\"1\",a=\"2\"}} 1\n"), "twice");
    check(&format!("{gauge}g{{a=\"\\t\"}} 1\n"), "a backslash before");
    check(&format!("{gauge}g{{a=\"1\" b=\"2\"}} 1\n"), "not apart");
    check(&format!("{gauge}g{{__a=\"1\"}} 1\n"), "no name of a label");
    check(&format!("{gauge}g inf\n"), "is no number");
    check(&format!("{gauge}g 1 soon\n"), "is no time");
    check(&format!("{gauge}g 1 1700000000 2\n"), "is no time");
    check(&format!("{gauge}# a remark\ng 1\n"), "neither HELP nor TYPE");
    check(&format!("{gauge}\ng 1\n"), "without a value");
    check("# HELP g x\n# TYPE g number\ng 1\n", "is no type");
    check("# HELP 1g x\n", "no name of a metric");
    check("# HELP c x\n# TYPE c counter\nc -1\n", "a counter of -1");
}

#[test]
fn histograms_that_do_not_add_up_are_refused() {
    let check = |samples: &str, expected: &str| {
        let text = format!("# HELP h x\n# TYPE h histogram\n{samples}");
        let error = MetricsText::parse(&text).expect_err(samples);
        let error = format!("{error:#}");
        assert!(error.contains(expected), "{error}");
    };
    let end = "h_sum 1\nh_count 2\n";
    check(&format!("h_bucket{{le=\"+Inf\"}} 1\n{end}"), "count of 2");
    check(&format!("h_bucket{{le=\"1\"}} 2\n{end}"), "the last bucket ends");
    check(
        &format!("h_bucket{{le=\"2\"}} 1\nh_bucket{{le=\"1\"}} 1\nh_bucket{{le=\"+Inf\"}} 2\n{end}"),
        "after",
    );
    check(
        &format!("h_bucket{{le=\"1\"}} 2\nh_bucket{{le=\"2\"}} 1\nh_bucket{{le=\"+Inf\"}} 2\n{end}"),
        "fewer",
    );
    check("h_bucket{le=\"+Inf\"} 2\nh_count 2\n", "no sum");
    check("h_bucket{le=\"+Inf\"} 2\nh_sum 2\n", "no count");
    check(&format!("h 1\n{end}"), "does not belong here");
    check(
        "h_bucket{a=\"1\",le=\"+Inf\"} 0\nh_sum{a=\"1\"} 0\nh_count{a=\"1\"} 0\n\
         h_bucket{a=\"2\",le=\"1\"} 0\nh_bucket{a=\"2\",le=\"+Inf\"} 0\nh_sum{a=\"2\"} 0\nh_count{a=\"2\"} 0\n",
        "different buckets",
    );
}
