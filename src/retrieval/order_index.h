#ifndef ROSATUNE_ORDER_INDEX_H
#define ROSATUNE_ORDER_INDEX_H
struct order_index;
#endif
