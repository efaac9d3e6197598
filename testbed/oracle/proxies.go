package main

import (
	"net/url"

	"golang.org/x/net/http/httpproxy"
)

type exceptionsInput struct {
	NoProxy string   `json:"noProxy"`
	URLs    []string `json:"urls"`
}

type exceptionsOutput struct {
	// Direct are the addresses that are reached without the proxy.
	Direct []string `json:"direct"`
}

func proxyExceptions(in exceptionsInput) (exceptionsOutput, error) {
	config := httpproxy.Config{HTTPSProxy: "http://proxy:1", NoProxy: in.NoProxy}
	choose := config.ProxyFunc()
	out := exceptionsOutput{Direct: []string{}}
	for _, text := range in.URLs {
		address, err := url.Parse(text)
		if err != nil {
			return out, err
		}
		proxy, err := choose(address)
		if err != nil {
			return out, err
		}
		if proxy == nil {
			out.Direct = append(out.Direct, text)
		}
	}
	return out, nil
}
