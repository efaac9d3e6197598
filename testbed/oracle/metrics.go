package main

import (
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

type metricsPageInput struct {
	Text string `json:"text"`
}

type metricsFamily struct {
	Type string `json:"type"`
	Help string `json:"help"`
	// Series counts a histogram once, whatever its buckets.
	Series int `json:"series"`
}

// metricsPage reads a page of metrics as Prometheus does, families by their names.
func metricsPage(in metricsPageInput) (map[string]metricsFamily, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(in.Text))
	if err != nil {
		return nil, err
	}
	found := map[string]metricsFamily{}
	for name, family := range families {
		found[name] = metricsFamily{
			Type:   strings.ToLower(family.GetType().String()),
			Help:   family.GetHelp(),
			Series: len(family.GetMetric()),
		}
	}
	return found, nil
}
