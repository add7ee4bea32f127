// Moving stored positions of a paged tensor.

#include <cstdlib>

#include "pack.h"

// A tensor of pages of `outer` runs of [PAGE][inner bytes] (values: outer = G, inner = D; keys: outer = G * D,
// inner = one number). All sources are read before any place is written.
void copy_positions(uint8_t* data, int64_t outer, int64_t inner, const int32_t* src, const int32_t* dst,
                    int64_t count) {
  auto* parked = static_cast<uint8_t*>(malloc(static_cast<size_t>(count * outer * inner) + 1));
  if (!parked) abort();
  auto place = [&](int64_t slot, int64_t o) { return data + ((slot / PAGE * outer + o) * PAGE + slot % PAGE) * inner; };
  for (int64_t i = 0; i < count; i++)
    for (int64_t o = 0; o < outer; o++) memcpy(parked + (i * outer + o) * inner, place(src[i], o), inner);
  for (int64_t i = 0; i < count; i++)
    for (int64_t o = 0; o < outer; o++) memcpy(place(dst[i], o), parked + (i * outer + o) * inner, inner);
  free(parked);
}
