package main

import (
	_ "unsafe" // for go:linkname

	"github.com/opencontainers/cgroups"
)

// Upstream asks the running machine whether it is on cgroup v2 and remembers the answer here. The oracle's answers must
// not depend on the machine, so each request says which version it means.
//
//go:linkname rememberedUnified github.com/opencontainers/cgroups.isUnified
var rememberedUnified bool

// setCgroupVersion makes upstream believe in the given version; 0 means 2.
func setCgroupVersion(version int) {
	cgroups.IsCgroup2UnifiedMode() // the first call looks at the machine and would overwrite what is set here
	rememberedUnified = version != 1
}
