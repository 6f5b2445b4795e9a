import type { flows as english } from "../en/flows";
import type { Translation } from "../types";

export const flows: Translation<typeof english> = {
  title: "Flussi",
  intro: "Ciò che guida i tuoi agenti: si disegna, si prova e si pubblica qui.",
  empty: "Non ci sono ancora flussi",
  emptyText: "Crea il primo: dagli un nome, disegna i compiti, parlaci e pubblicalo.",
  create: "Crea un flusso",
  name: "Nome",
  campaign: "Campagna",
  campaignHint: "I flussi di una campagna stanno insieme.",
  search: "Cerca flussi",
  noneFound: "Nessun flusso corrisponde a «{text}».",
  tags: "Etichette",
  noTags: "non pubblicato",
  changed: "Ultima modifica",
  changedBy: "{when} da {who}",
};
