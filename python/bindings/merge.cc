// merge: two partial attention results in the caller's arrays.
#include "capi/merge.h"

#include <nanobind/nanobind.h>

#include "arrays.h"
#include "bindings.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace lathe::python {
namespace {

void merge(nb::handle out_a, nb::handle lse_a, nb::handle out_b, nb::handle lse_b, nb::handle out,
           nb::handle lse) {
  const Array a("out_a", out_a);
  const Array a_lse("lse_a", lse_a);
  const Array b("out_b", out_b);
  const Array b_lse("lse_b", lse_b);
  const Array to("out", out, /*writable=*/true);
  const Array to_lse("lse", lse, /*writable=*/true);
  const auto done = [&] {
    const Unlocked unlocked;
    return merge_partials({a.ref(), a_lse.ref()}, {b.ref(), b_lse.ref()}, {to.ref(), to_lse.ref()});
  }();
  value_or_raise(done);
}

}  // namespace

void bind_merge(nb::module_& m) {
  using A = nb::arg;
  m.def("merge", &merge, A("out_a").none(), A("lse_a").none(), A("out_b").none(), A("lse_b").none(),
        A("out").none(), A("lse").none());
}

}  // namespace lathe::python
